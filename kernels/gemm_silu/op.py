"""The gated feed-forward's first half: y = silu(x Wg^T) * (x Wu^T)."""

from pathlib import Path

import numpy as np

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is
from mkport.kernels.gemm.op import DOT_ARENA, staged_bytes

TILE_ROWS = 16  # weight rows of gate and of up in a tile


def tiles(a):
    """One tile for every 16 output columns."""
    return -(-a.n // TILE_ROWS)


def access(a, tile):
    """A tile reads all tokens and the same rows of both weights."""
    tokens = a.y.shape[0]
    columns = (tile * TILE_ROWS, np.minimum((tile + 1) * TILE_ROWS, a.n))
    yield immutable("count", (0, 1))
    yield read("x", (0, tokens), (0, a.k))
    yield immutable("w_gate", columns, (0, a.k))
    yield immutable("w_up", columns, (0, a.k))
    yield write("y", (0, tokens), columns)


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.y.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "n")
    yield from multiple_of(a, 16, "k")
    yield from shape_is(a, "x", tokens, "k")
    yield from shape_is(a, "w_gate", "n", "k")
    yield from shape_is(a, "w_up", "n", "k")
    yield from shape_is(a, "y", tokens, "n")


OP = Op(
    name="gemm_silu",
    doc="y[t, n] = silu(sum_k x[t, k] w_gate[n, k]) * sum_k x[t, k] w_up[n, k]",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("x", "f32", "[tokens, k] input"),
        tensor("w_gate", "weight", "[n, k] gate weight"),
        tensor("w_up", "weight", "[n, k] up weight"),
        tensor("y", "f32", "[tokens, n] output"),
        integer("n", "output columns"),
        integer("k", "input columns, a multiple of 16"),
    ),
    tiles=tiles,
    access=access,
    valid=valid,
    arena=lambda a: 2 * DOT_ARENA,  # both products
    shared=lambda a, rows: staged_bytes(a.w_gate, a.k, rows),
    rows=lambda a: a.y.shape[0],
    stages="x",
    order=(
        "both products as in gemm; y = (gate / (1 + exp(-gate))) * up. "
        "GPU: exp(x) = exp2(x * log2 e), approximate"
    ),
    folder=Path(__file__).parent,
)
