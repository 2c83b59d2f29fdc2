"""Matrix product with an optional residual: y = x W^T (+ residual).

A tile takes all tokens, or one block of them where a machine has no room for the inputs of more.
What blocks are is the same for all dense products, and stands here.
"""

from pathlib import Path

import numpy as np

from mkport.declare import DTYPE_BYTES, Op, immutable, integer, read, real, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is

TILE_ROWS = 16  # weight rows, that is output columns, of a tile
TOKENS = 8  # that a GPU multiplies with one instruction, and joins together
MOST_TOKENS = 4 * TOKENS  # of a block
GROUP = 3  # that a CPU multiplies together
NORMED = 4096  # columns of a row that a GPU's worker can norm
SUMS = 64  # bytes that it joins a norm's sums in
CACHED = 0.5  # of the time that a GPU takes for a tile's weights: most blocks find them in a cache
DOT_ARENA = 4 * 16 * (4 * TILE_ROWS + 8 * 4 * 4)  # dot_rows: lanes (of 3 tokens), chains of 8 rows
WIDENED = 2048  # columns of rows that a CPU widens for many tokens


def staged_bytes(w, k, rows):
    """What `rows` rows of k activations, padded, take in a GPU's shared memory."""
    return rows * (k * DTYPE_BYTES[w.dtype] + 16)


def inputs_bytes(a, w, rows):
    """What the staged rows of a product with weights `w` take there, of a step of so many."""
    rows = min(a.block or rows, rows)
    return staged_bytes(w, a.k, rows) + (0 if a.norm_w is None else SUMS)


def norm_arena(a):
    """What a CPU's worker norms a group of tokens in, in bytes."""
    return 0 if a.norm_w is None else 4 * GROUP * a.k


def wide_bytes(k):
    """What a tile's rows of k weights take in float32, if a CPU widens them."""
    return 4 * TILE_ROWS * k if k <= WIDENED else 0


def sums_bytes(a):
    """What a CPU's worker keeps of many tokens: a tile's sums, with room for three tokens more."""
    return 4 * TILE_ROWS * (side_by_side(a) + 3)


def norm_access(a):
    """A tile of normed rows reads the norm's weights."""
    if a.norm_w is not None:
        yield immutable("norm_w", (0, a.k))


def norm_valid(a):
    """What the norm of the rows must satisfy."""
    yield from shape_is(a, "norm_w", "k")
    if a.norm_w is not None and a.k > NORMED:
        yield f"k is {a.k}, but rows of at most {NORMED} columns can be normed here"


def side_by_side(a):
    """Tokens that a tile takes."""
    tokens = a.x.shape[0]
    return min(a.block or tokens, tokens)


def blocks(a):
    """Blocks of tokens that a step can have; all tiles of one lie side by side."""
    tokens = a.x.shape[0]
    return -(-tokens // (a.block or max(tokens, 1)))


def block_lots(tiles_of_a_block):
    """The lots of a dense product, of which a block has so many tiles: its blocks."""

    def lots(a):
        each = tiles_of_a_block(a)
        return [(block * each, 1, each) for block in range(blocks(a))]

    return lots


def block_streams(a):
    """Bytes of a tile's weights, counted as what takes as long; 0 if all tokens are one block."""
    return int(CACHED * TILE_ROWS * a.k * DTYPE_BYTES[a.w.dtype]) if blocks(a) > 1 else 0


def block_tokens(a, block):
    """The tokens [first, end) of blocks."""
    tokens = a.x.shape[0]
    first = block * (a.block or tokens)
    return first, np.minimum(first + (a.block or tokens), tokens)


def block_valid(a):
    """What a block must satisfy."""
    if a.block % TOKENS or not 0 <= a.block <= MOST_TOKENS:
        yield f"block is {a.block}, not 0 or a multiple of {TOKENS} up to {MOST_TOKENS}"


def handovers(a):
    """Groups of a tile's tokens that a GPU multiplies side by side."""
    return -(-side_by_side(a) // TOKENS)


def columns(a):
    """Tiles of a block: one for every 16 output columns."""
    return -(-a.n // TILE_ROWS)


def tiles(a):
    """A tile for each (block, 16 output columns)."""
    return blocks(a) * columns(a)


def access(a, tile):
    """A tile reads its tokens, its weight rows, and its columns of the residual. The first
    one of a block leaves the normed rows where others want them."""
    tokens = block_tokens(a, tile // columns(a))
    column = tile % columns(a) * TILE_ROWS
    written = (column, np.minimum(column + TILE_ROWS, a.n))
    yield immutable("count", (0, 1))
    yield read("x", tokens, (0, a.k))
    yield immutable("w", written, (0, a.k))
    yield from norm_access(a)
    if a.residual is not None:
        yield read("residual", tokens, written)
    yield write("y", tokens, written)
    if a.norm_y is not None:
        yield write("norm_y", tokens, (0, np.where(tile % columns(a) == 0, a.k, 0)))


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.y.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "n")
    yield from multiple_of(a, 16, "k")
    yield from block_valid(a)
    yield from norm_valid(a)
    yield from shape_is(a, "x", tokens, "k")
    yield from shape_is(a, "w", "n", "k")
    yield from shape_is(a, "residual", tokens, "n")
    yield from shape_is(a, "y", tokens, "n")
    yield from shape_is(a, "norm_y", tokens, "k")
    if a.norm_y is not None and a.norm_w is None:
        yield "norm_y is given, but norm_w is absent"
    for name in ("x", "y", "residual"):
        other = getattr(a, name)
        if None not in (a.norm_y, other) and a.norm_y.name == other.name:
            yield f"norm_y is {name}, which every tile needs as it is"


NORM_ARGS = (
    tensor("norm_w", "f32", "[k] weight of the norm of x's rows; absent: as they are", True),
    real("norm_eps", "of that norm", 0.0),
)
NORM_ORDER = "rows that are normed are so as by rmsnorm's single group"

OP = Op(
    name="gemm",
    doc="y[t, n] = sum_k x[t, k] w[n, k] (+ residual[t, n]), of x or of its norm",
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
        integer("block", "tokens of a tile, a multiple of 8; 0: all", 0),
        *NORM_ARGS,
        tensor("norm_y", "f32", "[tokens, k] the normed rows, if others read them too", True),
    ),
    tiles=tiles,
    access=access,
    valid=valid,
    arena=lambda a: DOT_ARENA + norm_arena(a) + wide_bytes(a.k) + sums_bytes(a),
    shared=lambda a, rows: inputs_bytes(a, a.w, rows),
    rows=side_by_side,
    handovers=handovers,
    lots=block_lots(columns),
    streams=block_streams,
    stages="x",
    awaits=("x", "residual"),
    order=(
        "CPU: slices of 16 k, slice i to chain i % 4, fused multiply-add in each lane; chains "
        "(0 + 1) + (2 + 3); lanes joined in halves; the residual is added last. "
        "GPU: slices of 2048 bytes of k; a slice's steps of 16 k go to 8 warps in runs of "
        "ceil(steps / 8); even steps of a run to sum 0, odd ones to sum 1; sum 0 + sum 1, then "
        "the warps in order, then the residual; " + NORM_ORDER
    ),
    folder=Path(__file__).parent,
)
