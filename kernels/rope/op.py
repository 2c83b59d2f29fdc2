"""Heads on their own, queries in scratch or keys bound for the cache: their norm, if they have one,
and rotary position embedding.

With no table it only moves rows into the cache. Models that norm each head before they rotate use
it; the others rotate in the projection (`gemm_rope`).
"""

from pathlib import Path

import numpy as np

from mkport.declare import Op, immutable, integer, read, real, tensor, write
from mkport.declare.valid import rotates, shape_is

NOW = 1  # the logical cache is [row, past or now, head column]
HEADS = 8  # of a tile: one for each of a GPU worker's warps


def parts(a):
    """Tiles of a token."""
    return -(-a.heads // HEADS)


def access(a, tile):
    """A tile is up to 8 heads of one token."""
    token, first = tile // parts(a), tile % parts(a) * HEADS
    row = (token, token + 1)
    columns = (first * a.head_dim, np.minimum(first + HEADS, a.heads) * a.head_dim)
    yield immutable("count", (0, 1))
    yield immutable("rows", row, (0, 2))
    yield read("x", row, columns)
    if a.w is not None:
        yield immutable("w", (0, a.head_dim))
    if a.rope is not None:
        yield immutable("rope", (0, a.rope.shape[0]), (0, a.head_dim), picks=1)
    if a.y is not None:
        yield write("y", row, columns)
    else:
        yield immutable("page_table", (0, a.page_table.shape[0]), (0, a.page_table.shape[1]))
        yield write("pages", row, (NOW, NOW + 1), columns)


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.x.shape[0]
    yield from shape_is(a, "x", tokens, "heads * head_dim")
    yield from shape_is(a, "w", "head_dim")
    yield from rotates(a, tokens)


OP = Op(
    name="rope",
    doc="y[t, h] = rope(x[t, h]) (or of its norm), to scratch or to the token's slot of the cache",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("rows", "i32", "[tokens, 2] (sequence, position) of each token"),
        tensor("x", "f32", "[tokens, heads * head_dim] input"),
        tensor(
            "rope", "f32", "[positions, head_dim] cosines, then sines; absent: no rotation", True
        ),
        tensor("page_table", "i32", "[sequences, pages] physical page of each logical one", True),
        tensor(
            "y", "f32", "[tokens, heads * head_dim] output, may be x; where it is not cached", True
        ),
        tensor("pages", "kv", "[pages, heads, page, head_dim] cache, where it is", True),
        tensor("w", "f32", "[head_dim] weight of the heads' norm, if they are normed", True),
        integer("heads", "heads of a row"),
        integer("head_dim", "columns of a head, a multiple of 16"),
        integer("page", "keys in a page"),
        integer("pages_per_sequence", "columns of the page table"),
        integer("half_split", "1: pairs (i, i + head_dim / 2); 0: pairs (2 i, 2 i + 1)"),
        real("eps", "of the norm"),
    ),
    tiles=lambda a: a.x.shape[0] * parts(a),
    access=access,
    valid=valid,
    arena=lambda a: 8 * a.head_dim,  # one head, before and after it rotates
    shared=lambda a, rows: 4 * a.head_dim * (1 + HEADS),  # the norm's weights, a row for each warp
    awaits=("x",),
    order=(
        "the norm as rmsnorm's of several groups; rotated pair (p, q) by c, s: "
        "p' = fma(p, c, -(q * s)), q' = fma(q, c, p * s); "
        "the cache's storage type rounds last"
    ),
    folder=Path(__file__).parent,
)
