"""Row selection: picks the rows whose logits are wanted."""

from pathlib import Path

from mkport.declare import Op, integer, read, tensor, write


def access(a, tile):
    """A tile writes one row; which row it reads is data, so it waits for all of them."""
    yield read("count", (0, 1))
    yield read("index", (tile, tile + 1))
    yield read("x", (0, a.x.shape[0]), (0, a.k))
    yield write("y", (tile, tile + 1), (0, a.k))


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
    order="none: values are copied",
    folder=Path(__file__).parent,
)
