"""Matrix product with an optional residual: y = x W^T (+ residual)."""

from pathlib import Path

import numpy as np

from mkport.declare import DTYPE_BYTES, Op, immutable, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is

TILE_ROWS = 16  # weight rows, that is output columns, of a tile
DOT_ARENA = 4 * 16 * (4 * TILE_ROWS + 8 * 4 * 4)  # dot_rows: lanes (of 3 tokens), chains of 8 rows


def staged_bytes(w, k, rows):
    """What `rows` rows of k activations, padded, take in a GPU's shared memory."""
    return rows * (k * DTYPE_BYTES[w.dtype] + 16)


def tiles(a):
    """One tile for every 16 output columns."""
    return -(-a.n // TILE_ROWS)


def access(a, tile):
    """A tile reads all tokens, its weight rows, and its columns of the residual."""
    tokens = a.y.shape[0]
    columns = (tile * TILE_ROWS, np.minimum((tile + 1) * TILE_ROWS, a.n))
    yield immutable("count", (0, 1))
    yield read("x", (0, tokens), (0, a.k))
    yield immutable("w", columns, (0, a.k))
    if a.residual is not None:
        yield read("residual", (0, tokens), columns)
    yield write("y", (0, tokens), columns)


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.y.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "n")
    yield from multiple_of(a, 16, "k")
    yield from shape_is(a, "x", tokens, "k")
    yield from shape_is(a, "w", "n", "k")
    yield from shape_is(a, "residual", tokens, "n")
    yield from shape_is(a, "y", tokens, "n")


OP = Op(
    name="gemm",
    doc="y[t, n] = sum_k x[t, k] w[n, k] (+ residual[t, n])",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("x", "f32", "[tokens, k] input"),
        tensor("w", "weight", "[n, k] weight"),
        tensor(
            "residual", "f32", "[tokens, n] added to the product; may be y itself", optional=True
        ),
        tensor("y", "f32", "[tokens, n] output"),
        integer("n", "output columns"),
        integer("k", "input columns, a multiple of 16"),
    ),
    tiles=tiles,
    access=access,
    valid=valid,
    arena=lambda a: DOT_ARENA,
    shared=lambda a, rows: staged_bytes(a.w, a.k, rows),
    rows=lambda a: a.y.shape[0],
    stages="x",
    order=(
        "CPU: slices of 16 k, slice i to chain i % 4, fused multiply-add in each lane; chains "
        "(0 + 1) + (2 + 3); lanes joined in halves; the residual is added last. "
        "GPU: slices of 2048 bytes of k; a slice's steps of 16 k go to 8 warps in runs of "
        "ceil(steps / 8); even steps of a run to sum 0, odd ones to sum 1; sum 0 + sum 1, then "
        "the warps in order, then the residual"
    ),
    folder=Path(__file__).parent,
)
