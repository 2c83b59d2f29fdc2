"""A head projection: y = rope(x W^T), to scratch (queries) or into the paged cache (keys, values).

A tile is 16 outputs of one head, so chosen that both halves of every rotated pair are in it.
"""

from pathlib import Path

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import multiple_of, rotates, shape_is
from mkport.kernels.gemm.op import (
    DOT_ARENA,
    NORM_ARGS,
    NORM_ORDER,
    block_lots,
    block_tokens,
    block_valid,
    blocks,
    handovers,
    inputs_bytes,
    norm_access,
    norm_arena,
    norm_valid,
    side_by_side,
    sums_bytes,
    wide_bytes,
)

TILE_ROWS = 16  # weight rows of a tile: 8 rotated pairs
PAST, NOW = 0, 1  # the logical cache is [row, past or now, head]


def columns(a):
    """Tiles of a block: one for every 16 outputs."""
    return a.heads * a.head_dim // TILE_ROWS


def tiles(a):
    """A tile for each (block, 16 outputs)."""
    return blocks(a) * columns(a)


def access(a, tile):
    """A tile writes all its head's columns' share; in half-split pairs these are two runs.

    Declared by head: tiles of one head write disjoint columns, named by their place in it.
    """
    tokens = block_tokens(a, tile // columns(a))
    per_head = a.head_dim // TILE_ROWS
    head, part = tile % columns(a) // per_head, tile % per_head
    yield immutable("count", (0, 1))
    yield immutable("rows", tokens, (0, 2))
    yield read("x", tokens, (0, a.k))
    yield from norm_access(a)
    if a.rope is not None:
        yield immutable("rope", (0, a.rope.shape[0]), (0, a.head_dim), picks=side_by_side(a))
    half = a.head_dim // 2
    if a.half_split:
        runs = [(part * 8, part * 8 + 8), (half + part * 8, half + part * 8 + 8)]
    else:
        runs = [(part * 16, part * 16 + 16)]
    for lo, hi in runs:
        written = (head * a.head_dim + lo, head * a.head_dim + hi)
        yield immutable("w", written, (0, a.k))
        if a.y is not None:
            yield write("y", tokens, written)
        else:
            yield write("pages", tokens, (NOW, NOW + 1), written)
    if a.y is None:
        yield immutable("page_table", (0, a.page_table.shape[0]), (0, a.page_table.shape[1]))


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.x.shape[0]
    yield from multiple_of(a, 16, "k")
    yield from block_valid(a)
    yield from norm_valid(a)
    yield from shape_is(a, "x", tokens, "k")
    yield from shape_is(a, "w", "heads * head_dim", "k")
    yield from rotates(a, tokens)


OP = Op(
    name="gemm_rope",
    doc="y[t, h] = rope(sum_k x[t, k] w[h, k]), to scratch or to the token's slot of the cache",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("rows", "i32", "[tokens, 2] (sequence, position) of each token"),
        tensor("x", "f32", "[tokens, k] input"),
        tensor("w", "weight", "[heads * head_dim, k] weight"),
        tensor(
            "rope", "f32", "[positions, head_dim] cosines, then sines; absent: no rotation", True
        ),
        tensor("page_table", "i32", "[sequences, pages] physical page of each logical one", True),
        tensor("y", "f32", "[tokens, heads * head_dim] output, where it is not cached", True),
        tensor("pages", "kv", "[pages, heads, page, head_dim] cache, where it is", True),
        integer("heads", "heads of this projection"),
        integer("head_dim", "columns of a head, a multiple of 16"),
        integer("k", "input columns, a multiple of 16"),
        integer("page", "keys in a page"),
        integer("pages_per_sequence", "columns of the page table"),
        integer("half_split", "1: pairs (i, i + head_dim / 2); 0: pairs (2 i, 2 i + 1)"),
        integer("block", "tokens of a tile, a multiple of 8; 0: all", 0),
        *NORM_ARGS,
    ),
    tiles=tiles,
    access=access,
    valid=valid,
    # the product, moved by 8 rows; one output vector; normed rows; widened weights; sums
    arena=lambda a: DOT_ARENA + 512 + 64 + norm_arena(a) + wide_bytes(a.k) + sums_bytes(a),
    shared=lambda a, rows: inputs_bytes(a, a.w, rows),
    rows=side_by_side,
    handovers=handovers,
    lots=block_lots(columns),
    stages="x",
    awaits=("x",),
    order=(
        "the product as in gemm; rotated pair (p, q) by c, s: p' = fma(p, c, -(q * s)), "
        "q' = fma(q, c, p * s); the cache's storage type rounds last; " + NORM_ORDER
    ),
    folder=Path(__file__).parent,
)
