"""Rotary position embedding on its own: of queries in scratch, or of keys bound for the cache.

With no table it only moves rows into the cache. Models that norm each head before they rotate use
it; the others rotate in the projection (`gemm_rope`).
"""

from pathlib import Path

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import rotates, shape_is

NOW = 1  # the logical cache is [row, past or now, head column]


def access(a, tile):
    """A tile is one token with all its heads."""
    columns = (0, a.heads * a.head_dim)
    yield read("count", (0, 1))
    yield read("rows", (tile, tile + 1), (0, 2))
    yield read("x", (tile, tile + 1), columns)
    if a.rope is not None:
        yield immutable("rope", (0, a.rope.shape[0]), (0, a.head_dim), picks=1)
    if a.y is not None:
        yield write("y", (tile, tile + 1), columns)
    else:
        yield read("page_table", (0, a.page_table.shape[0]), (0, a.page_table.shape[1]))
        yield write("pages", (tile, tile + 1), (NOW, NOW + 1), columns)


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.x.shape[0]
    yield from shape_is(a, "x", tokens, "heads * head_dim")
    yield from rotates(a, tokens)


OP = Op(
    name="rope",
    doc="y[t, h] = rope(x[t, h]), to scratch or to the token's slot of the cache",
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
        integer("heads", "heads of a row"),
        integer("head_dim", "columns of a head, a multiple of 16"),
        integer("page", "keys in a page"),
        integer("pages_per_sequence", "columns of the page table"),
        integer("half_split", "1: pairs (i, i + head_dim / 2); 0: pairs (2 i, 2 i + 1)"),
    ),
    tiles=lambda a: a.x.shape[0],
    access=access,
    valid=valid,
    arena=lambda a: a.head_dim * 4,  # one rotated head
    order=(
        "rotated pair (p, q) by c, s: p' = fma(p, c, -(q * s)), q' = fma(q, c, p * s); "
        "the cache's storage type rounds last"
    ),
    folder=Path(__file__).parent,
)
