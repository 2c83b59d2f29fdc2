"""The op declaration: arguments, tiles, accesses, order, arena. Dependencies are derived from it.

An op lives in one folder with files of fixed names (`op.py`, `oracle.py`, `standalone.py`,
`task.py`, ...); a file that does not apply is absent. `op.py` holds the one `Op` called `OP`.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from mkport.declare.access import Access
from mkport.declare.record import MAX_ARGS
from mkport.declare.table import TensorSpec
from mkport.declare.valid import Said

ArgKind = Literal["tensor", "int", "float"]


@dataclass(frozen=True)
class Arg:
    """One argument of an op: a tensor's place in the table, an integer, or a float's bits."""

    name: str
    kind: ArgKind
    doc: str
    dtype: str = ""  # tensors: "f32", "i32", "weight" or "kv" (the last two are the program's)
    optional: bool = False  # tensors: may be absent, address 0 in the body
    default: float | None = None  # numbers: what a node has that does not say


def tensor(name: str, dtype: str, doc: str, optional: bool = False) -> Arg:
    """A tensor argument; `dtype` "weight" and "kv" stand for the program's own storage types."""
    return Arg(name, "tensor", doc, dtype, optional)


def integer(name: str, doc: str, default: int | None = None) -> Arg:
    """An int32 argument; a node may leave one out that has a `default`."""
    return Arg(name, "int", doc, default=default)


def real(name: str, doc: str, default: float | None = None) -> Arg:
    """A float32 argument, whose bits the record carries; a node may leave one out that has a
    `default`."""
    return Arg(name, "float", doc, default=default)


class Bound(SimpleNamespace):
    """An op's arguments bound for one node: ints and floats by value, tensors as `TensorSpec`."""

    def __getattr__(self, name: str) -> Any:  # only for names that are not set
        raise AttributeError(f"the op has no argument {name!r}")


Tiles = Callable[[Any], int]
Touches = Callable[[Any, np.ndarray], Iterable[Access]]
Run = tuple[int, int, int]  # (first, stride, count): the tiles first, first + stride, ...


@dataclass(frozen=True)
class Op:
    """A kind of work.

    `tiles(a)` is the number of tiles of a node with arguments `a`. `access(a, tile)` yields what
    the tiles `tile` (int64 array) touch. `order` is the arithmetic order in words: k-slices,
    accumulation chains, how partials join. `arena(a)` is the scratch a body may use, in bytes.
    `lots(a)` cuts the tiles into runs that no record may mix, since what is staged for one is of no
    use to another; an op without has one lot.
    On a GPU `shared(a, rows)` is the bytes of the buffer in shared memory that a record's inputs
    are staged in, `rows(a)` the token rows that a tile computes side by side, and `handovers(a)`
    how many groups of them are stored one after the other; a buffer that holds nothing but the rows
    of one argument, as they are, is declared by its name, `stages`, so that neighbours with the
    same rows share it. `addresses` names the argument that says where a record's immutable bytes
    are, if they lie where this step's data says. `awaits` names the arguments whose words a body
    awaits one by one, where their tensor is flagged. `block_shared(a)` is the shared memory, in
    bytes, that a ported kernel's block had. `streams(a)` is the bytes of weights and cache that a
    tile reads, or that others would in the time that it takes: what workers are kept even by. Where
    `seldom(a)`, later tiles often have nothing to do, and one of a worker's tiles counts.
    `elsewhere` pairs an argument that is updated with the optional one that is written in its
    place, where it is given.
    `valid(a)` yields a sentence for each condition that the arguments violate ("k is 24, not a
    multiple of 16"), and quantities that nodes with a tensor in common must agree on; see
    `valid.py`. The accesses of a node that violates any mean nothing. Raises ValueError for more
    arguments than a record holds, and for two of one name.
    """

    name: str
    doc: str
    args: tuple[Arg, ...]
    tiles: Tiles
    access: Touches
    order: str
    folder: Path
    arena: Callable[[Any], int] = field(default=lambda a: 0)
    shared: Callable[[Any, int], int] = field(default=lambda a, rows: 0)
    rows: Callable[[Any], int] = field(default=lambda a: 0)
    lots: Callable[[Any], Sequence[Run]] | None = None
    handovers: Callable[[Any], int] = field(default=lambda a: 1)
    stages: str = ""
    addresses: str = ""
    awaits: tuple[str, ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()
    block_shared: Callable[[Any], int] = field(default=lambda a: 0)
    streams: Callable[[Any], int] = field(default=lambda a: 0)
    seldom: Callable[[Any], bool] = field(default=lambda a: False)
    valid: Callable[[Any], Iterable[Said]] = field(default=lambda a: ())

    def __post_init__(self) -> None:
        if len(self.args) > MAX_ARGS:
            raise ValueError(
                f"op {self.name}: {len(self.args)} arguments, the record holds {MAX_ARGS}"
            )
        names = [arg.name for arg in self.args]
        if len(set(names)) != len(names):
            raise ValueError(f"op {self.name}: an argument name occurs twice in {names}")

    @property
    def tensors(self) -> tuple[Arg, ...]:
        """The tensor arguments, in order."""
        return tuple(arg for arg in self.args if arg.kind == "tensor")

    def bind(self, values: Mapping[str, Any], specs: Mapping[str, TensorSpec]) -> Bound:
        """Arguments as `tiles`, `access` and `arena` see them. `values` holds tensor names."""
        bound = Bound()
        for arg in self.args:
            value = values[arg.name]
            if arg.kind == "tensor":
                value = None if value is None else specs[value]
            setattr(bound, arg.name, value)
        return bound

    def encode(self, values: Mapping[str, Any], tensor_ids: Mapping[str, int]) -> list[int]:
        """The record's argument words [len(args)]: a tensor's place in the table (-1: absent), an
        int, or the bits of a float32. `values` holds tensor names, ints and floats, by argument."""
        words: list[int] = []
        for arg in self.args:
            value = values[arg.name]
            if arg.kind == "tensor":
                words.append(-1 if value is None else tensor_ids[value])
            elif arg.kind == "int":
                words.append(int(value))
            else:
                words.append(struct.unpack("<i", struct.pack("<f", value))[0])
        return words
