"""What a tile touches: boxes of tensors, in the tensors' logical coordinates.

A box bound is an int or, where it depends on the tile, an int array with one entry a tile: an op
describes all its tiles at once, so that a whole model's accesses are derived in a moment.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Mode = Literal["read", "write", "update", "immutable"]
Bound1 = int | np.ndarray
Range = tuple[Bound1, Bound1]  # [lo, hi)


@dataclass(frozen=True)
class Access:
    """One box of one tensor argument, and what is done to it.

    `mode` is "read" (written earlier in this step), "write" (this tile is its one writer),
    "update" (read, then written in place) or "immutable" (no task of this step writes it, so it
    may be streamed before any wait). `picks` says that of the first dimension only so many
    entries are touched, and which ones is data: the box holds all of them, so that what is proved
    holds for every choice.
    """

    arg: str
    mode: Mode
    box: tuple[Range, ...]  # one [lo, hi) per logical dimension
    picks: int | None = None


def read(arg: str, *box: Range) -> Access:
    """The tile reads this box; whoever writes it in this step comes first."""
    return Access(arg, "read", box)


def write(arg: str, *box: Range) -> Access:
    """The tile writes every element of this box and reads none of it."""
    return Access(arg, "write", box)


def update(arg: str, *box: Range) -> Access:
    """The tile reads this box and writes it in place."""
    return Access(arg, "update", box)


def immutable(arg: str, *box: Range, picks: int | None = None) -> Access:
    """The tile reads bytes that nothing writes during the step: weights, earlier steps' cache."""
    return Access(arg, "immutable", box, picks)
