"""Makes a learner's file out of a solution: blanks are cut out, the check is left behind.

A solution marks its blanks with a line `# blank` (or `// blank` in CUDA C++), with a note after a
colon if one helps, and a line `# end`. Everything from the line `# === check` on is the check's.
"""

import re
from dataclasses import dataclass
from pathlib import Path

MISSING = "your code is missing here"
CHECK = "# === check"
_BEGIN = re.compile(r"^(\s*)(#|//) blank(?:: (.*))?$")
_END = re.compile(r"^\s*(#|//) end$")


@dataclass(frozen=True)
class Blank:
    """What was cut out: how many lines, and the note that stands in their place."""

    lines: int
    note: str


def cut(text: str) -> tuple[str, tuple[Blank, ...]]:
    """The learner's text and its blanks. Raises ValueError for markers that do not pair up."""
    kept: list[str] = []
    blanks: list[Blank] = []
    opened: re.Match[str] | None = None
    inside = 0
    for number, line in enumerate(text.split(CHECK)[0].rstrip().splitlines(), 1):
        if (begin := _BEGIN.match(line)) is not None:
            if opened is not None:
                raise ValueError(f"line {number}: a blank inside a blank")
            opened, inside = begin, 0
        elif _END.match(line):
            if opened is None or not inside:
                raise ValueError(f"line {number}: a blank that ends without having begun")
            indent, comment, note = opened[1], opened[2], opened[3] or ""
            blanks.append(Blank(inside, note))
            kept += _hole(indent, comment, blanks[-1])
            opened = None
        elif opened is not None:
            inside += bool(line.strip())
        else:
            kept.append(line)
    if opened is not None:
        raise ValueError("the last blank has no end")
    return "\n".join(kept) + "\n", tuple(blanks)


def _hole(indent: str, comment: str, blank: Blank) -> list[str]:
    lines = f"{blank.lines} line{'s' if blank.lines > 1 else ''}"
    note = f": {blank.note}" if blank.note else ""
    told = f"{indent}{comment} about {lines}{note}"
    if comment == "//":
        return [told, f"{indent}// {MISSING}"]
    return [told, f'{indent}raise NotImplementedError("{MISSING}")']


def solution(text: str) -> str:
    """A solution without the check and without the lines that mark its blanks."""
    lines = text.split(CHECK)[0].rstrip().splitlines()
    return "\n".join(x for x in lines if not (_BEGIN.match(x) or _END.match(x))) + "\n"


def first_missing(path: Path) -> int | None:
    """The line of a learner's file where the first blank is still empty; None when none is."""
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        if MISSING in line:
            return number
    return None
