"""RMSNorm of each row, or of each head of each row."""

from pathlib import Path

from mkport.declare import Op, immutable, integer, read, real, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is


def access(a, tile):
    """A tile is one token with all its groups."""
    yield immutable("count", (0, 1))
    yield read("x", (tile, tile + 1), (0, a.groups * a.k))
    yield immutable("w", (0, a.k))
    yield write("y", (tile, tile + 1), (0, a.groups * a.k))


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.y.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "groups")
    yield from multiple_of(a, 16, "k")
    yield from shape_is(a, "x", tokens, "groups * k")
    yield from shape_is(a, "w", "k")
    yield from shape_is(a, "y", tokens, "groups * k")


OP = Op(
    name="rmsnorm",
    doc="y[t, g] = x[t, g] / sqrt(mean_k x[t, g, k]^2 + eps) * w",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("x", "f32", "[tokens, groups * k] input"),
        tensor("w", "f32", "[k] weight, the same for every group"),
        tensor("y", "f32", "[tokens, groups * k] output; may be x itself"),
        integer("groups", "1, or the number of heads normed one by one"),
        integer("k", "columns of a group, a multiple of 16"),
        real("eps", "added to the mean square"),
    ),
    tiles=lambda a: a.y.shape[0],
    access=access,
    valid=valid,
    shared=lambda a, rows: 4 * a.k * (9 if a.groups > 1 else 2),  # weights; a row, or one a warp
    awaits=("x",),
    order=(
        "CPU: squares summed like a gemm's products (16 lanes, 4 chains). GPU: vectors of 4 "
        "columns to the threads in turn (256, or a warp's 32 where there are several groups), "
        "fused multiply-adds in each; lanes joined in halves, then a single group's warps in "
        "order. Both: the mean by one division; 1 / sqrt in float32; y = (x * r) * w"
    ),
    folder=Path(__file__).parent,
)
