"""Macros: read from a text, and expanded, as a compiler does. Lines keep their numbers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mkport.port.lexer import Token, tokens

_DEPTH = 200  # of macros within macros
DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*((?:\\\n|/\*.*?\*/|[^\n])*)", re.DOTALL)


@dataclass(frozen=True)
class Macro:
    """A macro: its parameters (None for one without a list) and its tokens."""

    name: str
    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]
    line: int = 0

    @property
    def text(self) -> str:
        """Its replacement."""
        return "".join(token.text for token in self.body)


def logical_lines(text: str) -> list[str]:
    """Lines with their ends, those joined that a backslash or a comment continues."""
    chunks: list[str] = []
    part: list[str] = []
    for token in tokens(text):
        part.append(token.text)
        if token.kind == "line":
            chunks.append("".join(part))
            part = []
    if part:
        chunks.append("".join(part))
    return chunks


def empty_lines(chunk: str) -> str:
    """As many line ends as a text has."""
    return "\n" * chunk.count("\n")


def read_macro(rest: str, line: int) -> Macro | None:
    """The macro that stands behind `#define`; None where there is none."""
    found = re.match(r"([A-Za-z_]\w*)(\(([^)]*)\))?[ \t]*(.*)", rest, re.DOTALL)
    if not found:
        return None
    parameters = None
    if found[2] is not None:
        parameters = tuple(p.strip() for p in found[3].replace("\\\n", "").split(",") if p.strip())
    clean = [t for t in tokens(found[4]) if t.kind != "comment"]
    body = [Token("space", " ", t.start) if "\\\n" in t.text else t for t in clean]
    while body and body[-1].blank:
        body.pop()
    return Macro(found[1], parameters, tuple(body), line)


def macros(text: str) -> dict[str, Macro]:
    """The macros a text defines (the last definition of each), without regard to conditionals."""
    found: dict[str, Macro] = {}
    line = 1
    for chunk in logical_lines(text):
        directive = DIRECTIVE.match(chunk)
        if directive and directive[1] == "define":
            macro = read_macro(directive[2], line)
            if macro is not None:
                found[macro.name] = macro
        line += chunk.count("\n")
    return found


@dataclass
class _Expander:
    known: dict[str, Macro]
    depth: int = 0
    failed: list[str] = field(default_factory=list)

    def expand(self, given: list[Token], hidden: frozenset[str]) -> list[Token]:
        out: list[Token] = []
        at = 0
        while at < len(given):
            token = given[at]
            at += 1
            macro = self.known.get(token.text) if token.kind == "name" else None
            if macro is None or macro.name in hidden:
                out.append(token)
                continue
            body = list(macro.body)
            lines = 0
            if macro.parameters is not None:
                end, arguments = _arguments(given, at)
                if end is None:
                    out.append(token)
                    continue
                lines = sum(t.text.count("\n") for t in given[at:end])
                at = end
                body = self._substitute(macro, arguments, hidden)
            if self.depth > _DEPTH:
                self.failed.append(macro.name)
                return out
            self.depth += 1
            out += self.expand(body, hidden | {macro.name})
            self.depth -= 1
            out += [Token("line", "\n", token.start)] * lines
        return out

    def _substitute(
        self, macro: Macro, arguments: list[list[Token]], hidden: frozenset[str]
    ) -> list[Token]:
        assert macro.parameters is not None
        given = dict(zip(macro.parameters, arguments, strict=False))
        if macro.parameters and macro.parameters[-1].endswith("..."):
            fixed = len(macro.parameters) - 1
            name = macro.parameters[-1].removesuffix("...") or "__VA_ARGS__"
            rest: list[Token] = []
            for argument in arguments[fixed:]:
                rest += ([Token("mark", ",", 0)] if rest else []) + argument
            given[name] = rest
        out: list[Token] = []
        body = list(macro.body)
        for at, token in enumerate(body):
            before = next((t for t in reversed(body[:at]) if not t.blank), None)
            after = next((t for t in body[at + 1 :] if not t.blank), None)
            if token.text == "#" and after is not None and after.text in given:
                continue
            if token.text == "##":
                while out and out[-1].blank:
                    out.pop()
                continue
            if token.blank and before is not None and before.text == "##":
                continue
            new = [token]
            if token.kind == "name" and token.text in given:
                argument = [Token("space", " ", t.start) if t.kind == "line" else t
                            for t in given[token.text] if t.kind != "comment"]  # fmt: skip
                if before is not None and before.text == "#":
                    text = "".join(t.text for t in argument).strip()
                    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
                    new = [Token("string", f'"{quoted}"', token.start)]
                elif "##" in (before and before.text, after and after.text):
                    new = argument
                else:
                    new = self.expand(argument, hidden)
            if before is not None and before.text == "##" and out and new:
                glued = list(tokens(out.pop().text + new[0].text))
                new = [*glued, *new[1:]]
            out += new
        return out


def _arguments(given: list[Token], at: int) -> tuple[int | None, list[list[Token]]]:
    """The end of a macro's argument list that starts behind `at`, and its arguments."""
    while at < len(given) and given[at].blank:
        at += 1
    if at >= len(given) or given[at].text != "(":
        return None, []
    depth = 0
    arguments: list[list[Token]] = [[]]
    for place in range(at, len(given)):
        token = given[place]
        if token.text in "([{" and token.kind == "mark":
            depth += 1
            if depth == 1:
                continue
        elif token.text in ")]}" and token.kind == "mark":
            depth -= 1
            if depth == 0:
                stripped = [_strip(argument) for argument in arguments]
                return place + 1, [] if stripped == [[]] else stripped
        if token.text == "," and depth == 1:
            arguments.append([])
        else:
            arguments[-1].append(token)
    return None, []


def _strip(given: list[Token]) -> list[Token]:
    start, end = 0, len(given)
    while start < end and given[start].blank:
        start += 1
    while end > start and given[end - 1].blank:
        end -= 1
    return given[start:end]


def expand_text(text: str, known: Mapping[str, Macro]) -> str:
    """A text without directives, its macros expanded; lines keep their numbers."""
    given = list(tokens(text))
    return "".join(t.text for t in _Expander(dict(known)).expand(given, frozenset()))


def expand(text: str, defines: Mapping[str, str]) -> str:
    """The text with all its macros expanded, in order, without definitions and includes.

    Pragmas and conditionals stay. Lines keep their numbers.
    """
    known = {name: Macro(name, None, tuple(tokens(value))) for name, value in defines.items()}
    out: list[str] = []
    pending: list[str] = []

    def flush() -> None:
        if pending:
            out.append(expand_text("".join(pending), known))
            pending.clear()

    line = 1
    for chunk in logical_lines(text):
        found = DIRECTIVE.match(chunk)
        if found is None:
            pending.append(chunk)
        elif found[1] in ("pragma", "if", "ifdef", "ifndef", "elif", "else", "endif"):
            flush()
            out.append(chunk)
        else:
            flush()
            if found[1] == "define" and (macro := read_macro(found[2], line)) is not None:
                known[macro.name] = macro
            elif found[1] == "undef":
                known.pop(found[2].strip(), None)
            out.append(empty_lines(chunk))
        line += chunk.count("\n")
    flush()
    return "".join(out)
