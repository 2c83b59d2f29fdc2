"""The op example: y = factor * x. Say here what yours computes."""

from pathlib import Path

from mkport.declare import Op, integer, read, real, tensor, write
from mkport.declare.valid import multiple_of, shape_is


def access(a, tile):
    """What tile number `tile` touches: from this, dependencies and waits are derived."""
    yield read("x", (tile, tile + 1), (0, a.n))
    yield write("y", (tile, tile + 1), (0, a.n))


def valid(a):
    """What the arguments must satisfy: a sentence for each condition that they violate."""
    yield from multiple_of(a, 16, "n")
    yield from shape_is(a, "x", a.y.shape[0], "n")
    yield from shape_is(a, "y", a.y.shape[0], "n")


OP = Op(
    name="example",
    doc="y[t, n] = factor * x[t, n]",
    args=(
        tensor("x", "f32", "[rows, n] input"),
        tensor("y", "f32", "[rows, n] output"),
        integer("n", "columns, a multiple of 16"),
        real("factor", "what each value is multiplied by"),
    ),
    tiles=lambda a: a.y.shape[0],  # a tile a row
    access=access,
    valid=valid,
    order="one multiplication for each value: there is no order to choose",
    folder=Path(__file__).parent,
)
