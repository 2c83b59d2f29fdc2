"""What the scheduler knows of one sequence of tokens, and what it plans for a step: plain data.

Sampling, text and clients are not here: the core keeps those beside the sequence.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mkport.engine.prefix import NONE, Block

PENDING = -1  # a token that the machine knows, and the host not yet


class State(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"  # has no pages
    RUNNING = "running"  # has a row of the page tables
    PREEMPTED = "preempted"  # its pages' contents are in host memory
    ENDED = "ended"


@dataclass(eq=False)
class Sequence:
    """One choice of a request. The scheduler fills everything behind `leader`."""

    order: int  # of arrival: a lower one is served first and preempted last
    tokens: list[int]  # [ids] the prompt, then the output
    prompt: int  # tokens of the prompt
    all_logits: bool = False  # the logits of every prompt position are wanted
    leader: "Sequence | None" = None  # runs the prompt that this one shares

    state: State = State.WAITING
    computed: int = 0  # tokens whose keys and values are in its pages, or will be when the steps
    # that were launched have landed
    landed: int = 0  # of them, those that are there
    over: bool = False  # ends when the step that it is in has landed
    row: int = NONE  # of the page tables
    tables: list[list[int]] = field(default_factory=list)  # [pool][block] page; NONE: behind window
    block: Block | None = None  # the last block of it that is in the prefix cache
    entered: int = 0  # how many of its blocks are
    cached: int = 0  # prompt tokens that were found in the cache, or shared
    saved: Any = None  # the contents of its pages while it is preempted
    holes: list[list[bool]] = field(default_factory=list)  # [pool][block] had no page to save

    @property
    def remaining(self) -> int:
        """Known tokens that have not been run."""
        return 0 if self.over else len(self.tokens) - self.computed


@dataclass(slots=True)
class Part:
    """What a step runs of one sequence: `count` tokens from position `start` on.

    The logits of its last `wanted` tokens are wanted. Where PyTorch runs the others, `legs` says
    which legs of their way through the layers, the first and the one behind the last; they are
    computed when it `ends`.
    """

    sequence: Sequence
    start: int
    count: int
    wanted: int
    legs: tuple[int, int] | None = None
    ends: bool = True


@dataclass(frozen=True)
class Save:
    """The contents of a sequence's pages go to host memory; the pages belong to others after it."""

    sequence: Sequence
    pages: list[list[int]]  # [pool] those that hold something


@dataclass(frozen=True)
class Restore:
    """Saved contents come back, into other pages, in the order they were saved in."""

    sequence: Sequence
    pages: list[list[int]]  # [pool] as many as were saved


@dataclass(frozen=True)
class Copy:
    """One page's contents go to another page of the same pool."""

    pool: int
    source: int
    target: int


@dataclass
class Plan:
    """A step: first the moves, in order, then the entries of the page tables, then the parts."""

    parts: list[Part] = field(default_factory=list)
    moves: list[Save | Restore | Copy] = field(default_factory=list)
    entries: list[tuple[int, int, int, int]] = field(default_factory=list)  # pool, row, block, page
    decoding: int = 0  # sequences that run a token behind their prompt
    prompt: int = 0  # tokens of prompts, a late one counted for more

    @property
    def tokens(self) -> int:
        """Tokens that the step runs, to their end."""
        return sum(part.count for part in self.parts if part.ends)
