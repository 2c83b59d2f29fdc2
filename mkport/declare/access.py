"""What a tile touches: boxes of tensors, in the tensors' logical coordinates.

A box bound is an int or, where it depends on the tile, an int array with one entry a tile: an op
describes all its tiles at once, so that a whole model's accesses are derived in a moment.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

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
    holds for every choice. `apart` says that the box is more than a tile touches, and that no tile
    of the node touches what another one writes: the op's author answers for that, as the author of
    an ordinary kernel does for its blocks, and only other nodes are held against the whole box.
    """

    arg: str
    mode: Mode
    box: tuple[Range, ...]  # one [lo, hi) per logical dimension
    picks: int | None = None
    apart: bool = False


def read(arg: str, *box: Range, apart: bool = False) -> Access:
    """The tile reads this box; whoever writes it in this step comes first."""
    return Access(arg, "read", box, apart=apart)


def write(arg: str, *box: Range, apart: bool = False) -> Access:
    """The tile writes every element of this box and reads none of it."""
    return Access(arg, "write", box, apart=apart)


def update(arg: str, *box: Range, apart: bool = False) -> Access:
    """The tile reads this box and writes it in place."""
    return Access(arg, "update", box, apart=apart)


def immutable(arg: str, *box: Range, picks: int | None = None) -> Access:
    """The tile reads bytes that nothing writes during the step: weights, earlier steps' cache."""
    return Access(arg, "immutable", box, picks)


def whole(a: Any, arg: str, mode: Callable[..., Access], **options: Any) -> Iterator[Access]:
    """An access to a whole tensor argument of the bound arguments `a`; none where it is absent."""
    spec = getattr(a, arg)
    if spec is not None:
        yield mode(arg, *((0, size) for size in spec.logical), **options)
