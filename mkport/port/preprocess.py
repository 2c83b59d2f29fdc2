"""Local includes put in place, dead conditionals left out, macros expanded: what a compiler sees.

Lines keep their numbers: `Merged` says which file and line each one came from. Nothing here knows
what a kernel is.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import mkport.machines.host as host
from mkport.errors import UserError
from mkport.port.lexer import Token, tokens

# What the compilers of a composed file define; unknown where they disagree.
COMPILERS: dict[str, str | None] = {
    "__CUDACC__": None,
    "__CUDA_ARCH__": None,
    "__CUDACC_RTC__": None,
    "__NVCC__": None,
    "__GNUC__": None,
    "MK_HOST": None,
    "__cplusplus": "201703L",
}
GPU = {"__CUDACC__": "1", "__CUDA_ARCH__": "900", "__CUDACC_RTC__": "1"}
# Libraries' headers, and mkport's own text of what kernels use of them.
LIBRARIES = {
    r"cub/.+": "cub/cub.cuh",
    r"cooperative_groups(?:/reduce)?\.h": "cooperative_groups.h",
    r"cuda/(?:std/)?functional": "functional.h",
}
# What NVRTC can read of a header that is for host code too.
DEVICE_PARTS = {
    "cub/cub.cuh": (
        "cub/block/block_reduce.cuh", "cub/block/block_scan.cuh", "cub/block/block_load.cuh",
        "cub/block/block_store.cuh", "cub/warp/warp_reduce.cuh", "cub/warp/warp_scan.cuh",
    ),
}  # fmt: skip
_DEPTH = 200  # of macros within macros
_DIRECTIVE = re.compile(r"[ \t]*#[ \t]*(\w+)[ \t]*((?:\\\n|/\*.*?\*/|[^\n])*)", re.DOTALL)


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


@dataclass(frozen=True)
class Merged:
    """One text made of a file and its local includes."""

    text: str
    places: tuple[tuple[str, int], ...]  # of each line: file and line
    system: tuple[str, ...]  # the includes that are not local, in order
    libraries: frozenset[str] = frozenset()  # files that stand in for a library's own headers

    def place(self, line: int) -> tuple[str, int]:
        """Where a line of the text came from."""
        return self.places[min(max(line, 1), len(self.places)) - 1]

    def own(self, text: str, keep: bool = True) -> str:
        """A text of the same lines without those of libraries; `keep`: their places stay, blank."""
        lines = []
        for line, (file, _) in zip(text.split("\n"), self.places, strict=True):
            if file not in self.libraries:
                lines.append(line)
            elif keep:
                lines.append("")
        return "\n".join(lines)


def library_header(name: str) -> Path | None:
    """What stands in for a library's header: mkport's own text of what kernels use of it."""
    for pattern, file in LIBRARIES.items():
        if re.fullmatch(pattern, name):
            return Path(host.__file__).parent / "include" / file
    return None


def merge(path: Path) -> Merged:
    """Reads a file and puts the local includes that are found beside it in place, each once.

    What stands in for a library's header is put in place wherever that is included: it guards
    itself.

    Raises UserError for a file that cannot be read.
    """
    lines: list[str] = []
    places: list[tuple[str, int]] = []
    system: list[str] = []
    seen: set[Path] = set()
    libraries: set[str] = set()

    def add(file: Path, name: str, library: bool) -> None:
        seen.add(file.resolve())
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror or error}.") from error
        for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
            found = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
            if found:
                local = file.parent / found[2]
                if found[1] == '"' and local.is_file():
                    if library or local.resolve() not in seen:
                        add(local, name if library else found[2], library)
                    line = ""
                else:
                    system.append(found[2])
                    if (header := library_header(found[2])) is not None:
                        libraries.add(f"<{found[2]}>")
                        add(header, f"<{found[2]}>", True)
            elif re.match(r"\s*#\s*pragma\s+once\b", line):
                line = ""
            lines.append(line)
            places.append((name, number))

    add(path, path.name, False)
    return Merged("\n".join(lines), tuple(places), tuple(system), frozenset(libraries))


def resolve(text: str, defines: Mapping[str, str], view: Mapping[str, str] | None = None) -> str:
    """The text without the branches that no compiler of the port takes.

    A condition on what the compilers disagree about (`__CUDACC__`, `__CUDA_ARCH__`) stays, unless
    `view` says how one compiler has it. Lines that go leave an empty line behind.
    """
    known: dict[str, Macro | None] = {}
    for name, value in {**COMPILERS, **(view or {})}.items():
        known[name] = None if value is None else Macro(name, None, tuple(tokens(value)))
    if view is not None:
        known = {name: macro for name, macro in known.items() if macro is not None}
    known |= {name: Macro(name, None, tuple(tokens(value))) for name, value in defines.items()}
    out: list[str] = []
    stack: list[_Branch] = []
    for chunk in logical_lines(text):
        found = _DIRECTIVE.match(chunk)
        word, rest = (found[1], found[2]) if found else ("", "")
        live = all(branch.live is not False for branch in stack)
        if word in ("if", "ifdef", "ifndef"):
            holds = _condition(word, rest, known) if live else False
            stack.append(_Branch(holds, taken=holds is True, kept=live and holds is None))
            out.append(chunk if stack[-1].kept else _empty(chunk))
        elif word in ("elif", "else") and stack:
            top = stack[-1]
            outer = all(branch.live is not False for branch in stack[:-1])
            if top.kept:
                out.append(chunk)
            else:
                if top.taken or not outer:
                    top.live = False
                else:
                    top.live = True if word == "else" else _condition("if", rest, known) or False
                    top.taken = bool(top.live)
                out.append(_empty(chunk))
        elif word == "endif" and stack:
            out.append(chunk if stack.pop().kept else _empty(chunk))
        elif not live:
            out.append(_empty(chunk))
        else:
            if word == "define":
                macro = _macro(rest, 0)
                if macro is not None:
                    known[macro.name] = macro
            elif word == "undef":
                known.pop(rest.strip(), None)
            out.append(chunk)
    return "".join(out)


@dataclass
class _Branch:
    live: bool | None  # None: left to the compiler
    taken: bool
    kept: bool


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


def _empty(chunk: str) -> str:
    return "\n" * chunk.count("\n")


def _condition(word: str, rest: str, known: Mapping[str, Macro | None]) -> bool | None:
    rest = "".join(" " if t.kind == "comment" else t.text for t in tokens(rest)).replace("\\\n", "")
    if word in ("ifdef", "ifndef"):
        name = rest.strip()
        if name in known and known[name] is None:
            return None
        return (name in known) == (word == "ifdef")
    value = evaluate_condition(rest, known)
    return None if value is None else bool(value)


def evaluate_condition(text: str, known: Mapping[str, Macro | None]) -> int | None:
    """The value of an `#if`; None where it depends on what the compilers disagree about."""
    unknown = False

    def asked(found: re.Match[str]) -> str:
        nonlocal unknown
        name = found[1] or found[2]
        if name in known and known[name] is None:
            unknown = True
        return "1" if name in known else "0"

    text = re.sub(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))", asked, text)
    text = re.sub(r"\b__has_\w+\s*\([^)]*\)", "0", text)
    given = {name: macro for name, macro in known.items() if macro is not None}
    text = expand_text(text, given)
    if any(name in known for name in re.findall(r"[A-Za-z_]\w*", text)):
        unknown = True
    if unknown:
        return None
    text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
    text = re.sub(r"\b(?!0[xX])[A-Za-z_]\w*\b", "0", text)
    return integer_value(text)


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def integer_value(text: str) -> int | None:
    """The value of a constant C expression of numbers alone; None where it is none."""
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text).replace("/", "//")
    text = re.sub(r"&&", " and ", text)
    text = re.sub(r"\|\|", " or ", text)
    text = re.sub(r"!(?!=)", " not ", text)
    text = re.sub(r"\b(true|false)\b", lambda m: "1" if m[0] == "true" else "0", text)
    text = re.sub(r"\b0+(?=\d)", "", text) if not re.search(r"\b0[0-7]+\b", text) else ""
    while "?" in text:
        found = re.fullmatch(r"([^?]*)\?([^:?]*):(.*)", text, re.DOTALL)
        if not found:
            return None
        text = f"(({found[2]}) if ({found[1]}) else ({found[3]}))"
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.FloorDiv | ast.Mod):
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if isinstance(node.op, ast.FloorDiv) else left - quotient * right
        if type(node.op) in _BINARY:
            return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand)
        if isinstance(node.op, ast.Not):
            return int(not value)
        return {ast.USub: -value, ast.UAdd: value, ast.Invert: ~value}[type(node.op)]
    if isinstance(node, ast.BoolOp):
        values = [_value(v) for v in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _value(node.left), _value(node.comparators[0])
        return int(_COMPARE[type(node.ops[0])](left, right))
    if isinstance(node, ast.IfExp):
        return _value(node.body) if _value(node.test) else _value(node.orelse)
    raise ValueError("not a constant")


def _macro(rest: str, line: int) -> Macro | None:
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
        directive = _DIRECTIVE.match(chunk)
        if directive and directive[1] == "define":
            macro = _macro(directive[2], line)
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
        found = _DIRECTIVE.match(chunk)
        if found is None:
            pending.append(chunk)
        elif found[1] in ("pragma", "if", "ifdef", "ifndef", "elif", "else", "endif"):
            flush()
            out.append(chunk)
        else:
            flush()
            if found[1] == "define" and (macro := _macro(found[2], line)) is not None:
                known[macro.name] = macro
            elif found[1] == "undef":
                known.pop(found[2].strip(), None)
            out.append(_empty(chunk))
        line += chunk.count("\n")
    flush()
    return "".join(out)
