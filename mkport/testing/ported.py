"""What porting a kernel changed: the difference between its standalone file and its task file."""

import difflib
from dataclasses import dataclass

from mkport.declare import Op


@dataclass(frozen=True)
class PortDiff:
    """A unified difference and its line counts, docstrings and imports included."""

    op: str
    text: str
    kept: int  # lines that both files have
    removed: int  # lines of the standalone kernel alone
    added: int  # lines of the task alone


def port_diff(op: Op) -> PortDiff:
    """Compares kernels/<op>/standalone.py with kernels/<op>/task.py, which must both be there."""
    before, after = (
        (op.folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
        for name in ("standalone.py", "task.py")
    )
    folder = f"kernels/{op.folder.name}"
    lines = list(
        difflib.unified_diff(before, after, f"{folder}/standalone.py", f"{folder}/task.py")
    )
    removed = sum(line.startswith("-") for line in lines[2:])
    added = sum(line.startswith("+") for line in lines[2:])
    return PortDiff(op.name, "".join(lines), len(before) - removed, removed, added)
