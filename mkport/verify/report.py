"""What the verifier says: problems as data and in words, the refusal, and the report of a pass."""

from dataclasses import dataclass
from typing import Literal

from mkport.errors import UserError

Box = tuple[tuple[int, int], ...]
Place = tuple[int, int]  # (worker, index in its list)
ProblemKind = Literal[
    "workers",  # more workers than can be resident
    "table",  # two tensors of the table under one name
    "argument",  # a node's arguments violate what its op says of them
    "access",  # a declared access that names no tensor of the node, or writes what nobody may write
    "bounds",  # a declared box outside its tensor's logical shape
    "writer",  # two tiles of one node meet in an element that one of them writes
    "immutable",  # bytes declared immutable are written in the step
    "uninitialised",  # a tile reads scratch that nothing wrote before
    "record",  # a record that no planner could have made
    "coverage",  # a tile that runs never or twice
    "target",  # a wait's target is not the sum of the signals
    "cycle",  # records that wait for each other
    "flagged",  # a flagged tensor that two nodes write, or one reads without awaiting its words
    "order",  # two records touch one tile and nothing puts them in program order
]
MAX_PROBLEMS = 16  # of one kind; a single fault often shows in thousands of places


@dataclass(frozen=True)
class Problem:
    """One reason for a refusal. Fields that do not apply are empty."""

    kind: ProblemKind
    message: str
    records: tuple[Place, ...] = ()
    tensor: str = ""
    box: Box = ()  # logical coordinates, [lo, hi) per dimension
    edge: tuple[Place, Place] | None = None  # (before, after): the missing happens-before


class Refused(UserError):
    """The schedule is not safe to run; `problems` says why, the message tells the first of them."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        more = len(problems) - 1
        rest = f" ({more} more problem{'s' if more > 1 else ''} of this schedule not shown.)"
        super().__init__(f"Schedule refused: {problems[0].message}" + (rest if more else ""))


@dataclass(frozen=True)
class Report:
    """What was proved, in numbers.

    `edges` counts the happens-before edges of lists and waits, `atoms` the pieces that the written
    tensors were cut into, `checks` the comparisons of a touch with an earlier touch of one piece.
    """

    records: int
    workers: int
    counters: int
    edges: int
    atoms: int
    checks: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"safe: {self.records:,} records on {self.workers} workers, {self.counters} counters, "
            f"{self.edges:,} edges, {self.checks:,} checks on {self.atoms:,} atoms "
            f"in {self.seconds:.3f} s"
        )


def tile_text(tensor: str, box: Box) -> str:
    """A tile in words: "x[0:8, 64:80]"."""
    return f"{tensor}[{', '.join(f'{lo}:{hi}' for lo, hi in box)}]"
