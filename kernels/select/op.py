"""Row selection: picks the rows whose logits are wanted."""

from pathlib import Path

from mkport.declare import Op, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is


def access(a, tile):
    """A tile writes one row; which row it reads is data, so it waits for all of them."""
    yield read("count", (0, 1))
    yield read("index", (tile, tile + 1))
    yield read("x", (0, a.x.shape[0]), (0, a.k))
    yield write("y", (tile, tile + 1), (0, a.k))


def valid(a):
    """What the arguments must satisfy."""
    rows = a.y.shape[0]
    yield from counted(a, rows)
    yield from multiple_of(a, 16, "k")
    yield from shape_is(a, "index", rows)
    yield from shape_is(a, "x", None, "k")
    yield from shape_is(a, "y", rows, "k")


OP = Op(
    name="select",
    doc="y[i] = x[index[i]]",
    args=(
        tensor("count", "i32", "[1] selected rows of this step; later rows are left alone"),
        tensor("index", "i32", "[rows] which row of x, each within it"),
        tensor("x", "f32", "[tokens, k] input"),
        tensor("y", "f32", "[rows, k] output"),
        integer("k", "columns, a multiple of 16"),
    ),
    tiles=lambda a: a.y.shape[0],
    access=access,
    valid=valid,
    order="none: values are copied",
    folder=Path(__file__).parent,
)
