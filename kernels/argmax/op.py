"""The largest logit's index: greedy choice of the next token."""

from pathlib import Path

from mkport.declare import Op, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is


def access(a, tile):
    """A tile is one row."""
    yield read("count", (0, 1))
    yield read("x", (tile, tile + 1), (0, a.n))
    yield write("y", (tile, tile + 1))


def valid(a):
    """What the arguments must satisfy."""
    rows = a.y.shape[0]
    yield from counted(a, rows)
    yield from multiple_of(a, 1, "n")
    yield from shape_is(a, "x", rows, "n")
    yield from shape_is(a, "y", rows)


OP = Op(
    name="argmax",
    doc="y[t] = the lowest index of the largest x[t, n]; -1 where a value is not finite",
    args=(
        tensor("count", "i32", "[1] rows of this step; later rows are left alone"),
        tensor("x", "f32", "[rows, n] logits"),
        tensor("y", "i32", "[rows] output"),
        integer("n", "columns"),
    ),
    tiles=lambda a: a.y.shape[0],
    access=access,
    valid=valid,
    shared=lambda a, rows: 8 * 12,  # each warp's value, index and flag
    order="exact: the lower index wins a tie",
    folder=Path(__file__).parent,
)
