"""What each op's folder holds: which forms are written, for which machine, with which ladder."""

from collections.abc import Iterable
from dataclasses import dataclass

from mkport.declare import Op


@dataclass(frozen=True)
class Entry:
    """One op and the files beside its declaration."""

    op: str
    doc: str
    tiles: str  # how its output is cut; empty where the declaration has no words for it
    order: str  # its arithmetic order
    oracle: bool
    standalone: bool
    ladder: tuple[str, ...]  # the rungs before the standalone form
    cpu: bool  # ported to the CPU machine
    cuda: bool  # ported to the CUDA machine


def inventory(ops: Iterable[Op]) -> list[Entry]:
    """An entry for each op, in the given order."""
    return [_entry(op) for op in ops]


def _entry(op: Op) -> Entry:
    def has(name: str) -> bool:
        return (op.folder / name).is_file()

    return Entry(
        op=op.name,
        doc=op.doc,
        tiles=(op.tiles.__doc__ or "").strip().split("\n")[0],
        order=op.order,
        oracle=has("oracle.py"),
        standalone=has("standalone.py"),
        ladder=tuple(sorted(path.stem for path in (op.folder / "ladder").glob("[0-9]*"))),
        cpu=has("task.py"),
        cuda=has("task.cuh"),
    )
