"""Embedding lookup: a row of the table for each token."""

from pathlib import Path

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is


def access(a, tile):
    """A tile reads its token's id and writes its row; which table row it reads is data."""
    yield read("count", (0, 1))
    yield read("tokens", (tile, tile + 1))
    yield immutable("table", (0, a.table.shape[0]), (0, a.k), picks=1)
    yield write("y", (tile, tile + 1), (0, a.k))


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.y.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 16, "k")
    yield from shape_is(a, "tokens", tokens)
    yield from shape_is(a, "table", None, "k")
    yield from shape_is(a, "y", tokens, "k")


OP = Op(
    name="embed",
    doc="y[t] = table[tokens[t]]",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("tokens", "i32", "[tokens] ids, each within the table"),
        tensor("table", "weight", "[vocabulary, k] embedding"),
        tensor("y", "f32", "[tokens, k] output"),
        integer("k", "columns, a multiple of 16"),
    ),
    tiles=lambda a: a.y.shape[0],
    access=access,
    valid=valid,
    order="none: values are widened exactly",
    folder=Path(__file__).parent,
)
