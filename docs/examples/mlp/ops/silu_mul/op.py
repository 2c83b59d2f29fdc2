"""SiLU of a gate, times the values beside it."""

from pathlib import Path

from mkport.declare import Op, integer, read, tensor, write
from mkport.declare.valid import multiple_of, shape_is


def access(a, tile):
    """A tile is one row."""
    yield read("x", (tile, tile + 1), (0, 2 * a.n))
    yield write("y", (tile, tile + 1), (0, a.n))


def valid(a):
    """What the arguments must satisfy."""
    yield from multiple_of(a, 16, "n")
    yield from shape_is(a, "x", a.y.shape[0], 2 * a.n)
    yield from shape_is(a, "y", a.y.shape[0], "n")


OP = Op(
    name="silu_mul",
    doc="y[t, n] = g / (1 + exp(-g)) * v, where x[t] is the gates g, then the values v",
    args=(
        tensor("x", "f32", "[rows, 2 n] gates, then values"),
        tensor("y", "f32", "[rows, n] output"),
        integer("n", "columns, a multiple of 16"),
    ),
    tiles=lambda a: a.y.shape[0],
    access=access,
    valid=valid,
    order="g * (1 / (1 + exp(-g))), then times v",
    folder=Path(__file__).parent,
)
