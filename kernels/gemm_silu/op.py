"""The gated feed-forward's first half: y = silu(x Wg^T) * (x Wu^T)."""

from pathlib import Path

import numpy as np

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is
from mkport.kernels.gemm.op import (
    DOT_ARENA,
    NORM_ARGS,
    NORM_ORDER,
    block_lots,
    block_tokens,
    block_valid,
    columns,
    handovers,
    inputs_bytes,
    norm_access,
    norm_arena,
    norm_valid,
    side_by_side,
    sums_bytes,
    tiles,
    wide_bytes,
)

TILE_ROWS = 16  # weight rows of gate and of up in a tile


def gates_bytes(a):
    """What a CPU's worker keeps of many tokens: a tile's gates, and its ups."""
    return 2 * sums_bytes(a)


def access(a, tile):
    """A tile reads its tokens and the same rows of both weights."""
    tokens = block_tokens(a, tile // columns(a))
    column = tile % columns(a) * TILE_ROWS
    written = (column, np.minimum(column + TILE_ROWS, a.n))
    yield immutable("count", (0, 1))
    yield read("x", tokens, (0, a.k))
    yield from norm_access(a)
    yield immutable("w_gate", written, (0, a.k))
    yield immutable("w_up", written, (0, a.k))
    yield write("y", tokens, written)


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.y.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "n")
    yield from multiple_of(a, 16, "k")
    yield from block_valid(a)
    yield from norm_valid(a)
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
        integer("block", "tokens of a tile, a multiple of 8; 0: all", 0),
        *NORM_ARGS,
    ),
    tiles=tiles,
    access=access,
    valid=valid,
    # both products, normed rows, a tile's weights, gates
    arena=lambda a: 2 * DOT_ARENA + norm_arena(a) + wide_bytes(a.k) + gates_bytes(a),
    shared=lambda a, rows: inputs_bytes(a, a.w_gate, rows),
    rows=side_by_side,
    handovers=handovers,
    lots=block_lots(columns),
    stages="x",
    awaits=("x",),
    order=(
        "both products as in gemm; y = (gate / (1 + exp(-gate))) * up. "
        "GPU: exp(x) = exp2(x * log2 e), approximate; " + NORM_ORDER
    ),
    folder=Path(__file__).parent,
)
