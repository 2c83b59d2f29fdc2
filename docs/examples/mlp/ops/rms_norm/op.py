"""RMSNorm of each row."""

from pathlib import Path

from mkport.declare import Op, integer, read, real, tensor, write
from mkport.declare.valid import multiple_of, shape_is


def access(a, tile):
    """A tile is one row."""
    yield read("x", (tile, tile + 1), (0, a.n))
    yield read("w", (0, a.n))
    yield write("y", (tile, tile + 1), (0, a.n))


def valid(a):
    """What the arguments must satisfy."""
    yield from multiple_of(a, 1, "n")
    yield from shape_is(a, "x", a.y.shape[0], "n")
    yield from shape_is(a, "w", "n")
    yield from shape_is(a, "y", a.y.shape[0], "n")


OP = Op(
    name="rms_norm",
    doc="y[t] = x[t] / sqrt(mean_n x[t, n]^2 + eps) * w",
    args=(
        tensor("x", "f32", "[rows, n] input"),
        tensor("w", "f32", "[n] weight"),
        tensor("y", "f32", "[rows, n] output"),
        integer("n", "columns"),
        real("eps", "added to the mean square"),
    ),
    tiles=lambda a: a.y.shape[0],
    access=access,
    valid=valid,
    order="CPU: squares added column by column. GPU: a thread adds every 256th column's, then "
    "lanes are joined in halves, then warps in order",
    folder=Path(__file__).parent,
)
