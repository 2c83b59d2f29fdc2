"""The next token: the best of a row's blocks that `sample` left."""

from pathlib import Path

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is


def access(a, tile):
    """A tile is one row."""
    yield immutable("count", (0, 1))
    yield read("best", (tile, tile + 1), (0, a.parts))
    yield read("at", (tile, tile + 1), (0, a.parts))
    yield write("y", (tile, tile + 1))


def valid(a):
    """What the arguments must satisfy."""
    rows = a.y.shape[0]
    yield from counted(a, rows)
    yield from multiple_of(a, 1, "parts")
    yield from shape_is(a, "best", rows, "parts")
    yield from shape_is(a, "at", rows, "parts")
    yield from shape_is(a, "y", rows)


OP = Op(
    name="sample_join",
    doc="y[t] = at[t, p] of the largest best[t, p], the lowest among equals; -1 where an at is",
    args=(
        tensor("count", "i32", "[1] rows of this step; later rows are left alone"),
        tensor("best", "f32", "[rows, parts] each block's largest value"),
        tensor(
            "at", "i32", "[rows, parts] its index, higher from block to block; -1: there is none"
        ),
        tensor("y", "i32", "[rows] output"),
        integer("parts", "blocks of a row"),
    ),
    tiles=lambda a: a.y.shape[0],
    access=access,
    valid=valid,
    order="exact: blocks in index order, the lower index wins a tie",
    folder=Path(__file__).parent,
)
