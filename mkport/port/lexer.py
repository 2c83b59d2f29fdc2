"""Tokens of C++ text, exact to the byte: joined together they are the text again."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
    |(?P<string>(?:u8|[uUL])?R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"
        |(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')
    |(?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
    |(?P<name>[A-Za-z_$]\w*)
    |(?P<space>(?:\\\n|[ \t\r\f\v])+)
    |(?P<line>\n)
    |(?P<mark2>\#\#|::|->|<<<|>>>|.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its kind (comment, string, number, name, space, line, mark), text and place."""

    kind: str
    text: str
    start: int

    @property
    def blank(self) -> bool:
        """True for what a compiler skips."""
        return self.kind in ("space", "line", "comment")


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a text, in order, nothing left out."""
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup or "mark"
        if kind == "mark":  # the delimiter of a raw string closed last
            kind = "string"
        yield Token("mark" if kind == "mark2" else kind, found[0], found.start())


def names(text: str) -> set[str]:
    """The identifiers in a text, outside comments and strings."""
    return {token.text for token in tokens(text) if token.kind == "name"}


def replace_names(text: str, change: Callable[[str], str | None]) -> str:
    """The text with identifiers replaced where `change` returns another one."""
    return "".join(
        token.text if token.kind != "name" or (new := change(token.text)) is None else new
        for token in tokens(text)
    )


def blanked(text: str, ranges: Iterable[tuple[int, int]]) -> str:
    """The text with ranges overwritten by spaces; line ends stay, so that places are the same."""
    parts, at = [], 0
    for start, end in sorted(ranges):
        start = max(start, at)
        if end <= start:
            continue
        parts.append(text[at:start])
        parts.append(re.sub(r"[^\n]", " ", text[start:end]))
        at = end
    return "".join([*parts, text[at:]])


def split_list(text: str, separator: str = ",") -> list[str]:
    """A list's parts, split at separators outside of brackets; angle brackets count."""
    parts, depth = [""], 0
    for token in tokens(text):
        if token.kind == "mark":
            depth += (token.text in "([{<") - (token.text in ")]}>")
            if token.text == separator and depth == 0:
                parts.append("")
                continue
        parts[-1] += token.text
    return [part.strip() for part in parts if part.strip()]
