"""LayerNorm of each row, without a bias."""

from pathlib import Path

from mkport.declare import Op, immutable, integer, read, real, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is


def access(a, tile):
    """A tile is one token."""
    yield immutable("count", (0, 1))
    yield read("x", (tile, tile + 1), (0, a.k))
    yield immutable("w", (0, a.k))
    yield write("y", (tile, tile + 1), (0, a.k))


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.y.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 16, "k")
    yield from shape_is(a, "x", tokens, "k")
    yield from shape_is(a, "w", "k")
    yield from shape_is(a, "y", tokens, "k")


OP = Op(
    name="layernorm",
    doc="y[t] = (x[t] - mean) / sqrt(mean_k (x[t, k] - mean)^2 + eps) * w",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("x", "f32", "[tokens, k] input"),
        tensor("w", "f32", "[k] weight"),
        tensor("y", "f32", "[tokens, k] output; may be x itself"),
        integer("k", "columns, a multiple of 16"),
        real("eps", "added to the variance"),
    ),
    tiles=lambda a: a.y.shape[0],
    access=access,
    valid=valid,
    shared=lambda a, rows: 8 * a.k,  # the weights, and a row
    awaits=("x",),
    order=(
        "mean = sum of x / k; rest = sum of (x - mean) / k, what rounding left of the mean; "
        "centred = (x - mean) - rest; variance = sum of centred^2 / k; "
        "r = 1 / sqrt(variance + eps) in float32; y = (centred * r) * w. "
        "CPU: sums in 16 lanes and 4 chains as in gemm. GPU: vectors of 4 columns to 256 threads "
        "in turn; lanes joined in halves, then the warps in order"
    ),
    folder=Path(__file__).parent,
)
