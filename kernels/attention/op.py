"""Paged attention of one split: keys of a fixed range of positions, for the heads of one kv head.

A split is `SPLIT` keys at absolute positions [s SPLIT, (s + 1) SPLIT), whatever the sequence's
length, so a row's arithmetic depends on its own position alone. `attention_combine` joins them.

`partial` has a place for each split that a token can see, and split s goes to place s % splits: all
splits of the context have one of their own or, with a window, as many as it can touch. Where that
is one, there is nothing to join: `y` takes the output itself, with the bits that it would have.
"""

from math import gcd
from pathlib import Path

from mkport.declare import DTYPE_BYTES, Op, immutable, integer, read, real, tensor, write
from mkport.declare.valid import (
    Shared,
    cache_is,
    counted,
    multiple_of,
    placed,
    sets,
    shape_is,
    within,
)

SPLIT = 512  # keys in a split
PACE = 1.3  # times that a split takes on a GPU of what as many bytes of weights do
BLOCK = 16  # keys scored together: one vector of scores
PAST, NOW = 0, 1  # the logical cache is [row, past or now, head column]


def splits_kept(context: int, window: int) -> int:
    """Places for splits that a token needs at up to `context` positions: those that it can see.

    `window` is in keys, the token's own included; 0: all up to its own.
    """
    splits = -(-context // SPLIT)
    return min(splits, _touched(window)) if window else splits


def _touched(window: int) -> int:
    """The most splits that so many keys side by side can lie in."""
    return -(-(window - 1) // SPLIT) + 1


def tiles(a):
    """A tile for each (token, place of a split, kv head), the kv head fastest."""
    return a.q.shape[0] * a.splits * a.kv_heads


def shared(a, rows):
    """Bytes of 8 warps' sums, m and l.

    On the tensor cores those of 8 queries, and the queries; otherwise of one query, and the weights
    of each warp's 64 keys. Behind them, of more than 8 tokens, where each one is.
    """
    tokens = 4 * 3 * rows if rows > 8 else 0
    if a.k_pages.dtype == "bf16" and a.head_dim in (64, 128):
        return 8 * 8 * 4 * (a.head_dim + 4 + 2) + 8 * 2 * (a.head_dim + 8) + tokens
    return 8 * 4 * (a.head_dim + 2 + 64) + tokens


def access(a, tile):
    """A tile reads its heads' queries and, of its kv head, keys of earlier steps and of this one.

    Any token of this step may be an earlier one of the same sequence, so a tile waits for the
    keys and values of all of them; which pages hold them is data.
    """
    tokens = a.q.shape[0]
    head = tile % a.kv_heads
    token = tile // (a.kv_heads * a.splits)
    place = (tile // a.kv_heads % a.splits + token) * a.split_step % a.splits
    group = a.heads // a.kv_heads
    columns = (head * a.head_dim, (head + 1) * a.head_dim)
    yield immutable("count", (0, 1))
    yield immutable("rows", (0, tokens), (0, 2))
    yield immutable("page_table", (0, a.page_table.shape[0]), (0, a.page_table.shape[1]))
    yield read("q", (token, token + 1), (columns[0] * group, columns[1] * group))
    for pages in ("k_pages", "v_pages"):
        yield immutable(pages, (0, tokens), (PAST, PAST + 1), columns)
        yield read(pages, (0, tokens), (NOW, NOW + 1), columns)
    heads = (head * group, (head + 1) * group)
    if a.y is not None:
        yield write("y", (token, token + 1), (columns[0] * group, columns[1] * group))
    else:
        yield write("partial", (token, token + 1), (place, place + 1), heads)


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.q.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "kv_heads", "splits")
    yield from multiple_of(a, max(a.kv_heads, 1), "heads")
    yield from multiple_of(a, 16, "head_dim", "page")
    yield from within(a, "window", 0)
    yield from within(a, "split_step", 1, max(a.splits - 1, 1))
    if gcd(a.split_step, a.splits) != 1:
        yield f"split_step is {a.split_step}, which has a divisor of splits = {a.splits}"
    yield from placed(a, tokens)
    yield from shape_is(a, "q", tokens, "heads * head_dim")
    yield from cache_is(a, "k_pages", tokens, "kv_heads")
    yield from cache_is(a, "v_pages", tokens, "kv_heads")
    if a.k_pages.shape != a.v_pages.shape:
        yield f"k_pages is {list(a.k_pages.shape)}, but v_pages is {list(a.v_pages.shape)}"
    logical = (tokens, "splits", "heads")
    yield from shape_is(a, "partial", *logical, a.head_dim + 16, logical=logical)
    yield from shape_is(a, "y", tokens, "heads * head_dim")
    if (a.partial is None) == (a.y is None):
        yield "one of partial and y takes the output: give one of them"
    if a.y is not None and a.splits != 1:
        yield f"y takes the output of one split, but splits is {a.splits}"
    if not a.window or a.splits < _touched(a.window):  # else no two that are seen share a place
        yield Shared(a.rows.name, "positions", 1, a.splits * SPLIT)
    if a.partial is not None:
        yield sets(a.partial, "window", a.window)


def arena(a):
    """What a CPU's worker needs, in bytes: of each query head sums, vectors m, l, e^(m - m') and
    weights, and the scores' partial lanes; or, of 16 tokens together, 16 keys and values, weights,
    and of each head the queries, sums, vectors m, l, e^(m - m'), and the first and last key."""
    group = a.heads // a.kv_heads
    alone = group * (a.head_dim + 4 * 16 + 16 * 16)
    together = 32 * a.head_dim + 16 * 16 + group * (32 * a.head_dim + 5 * 16)
    return 4 * max(alone, together)


def streams(a):
    """A split's keys and values, each byte counted as what takes as long."""
    return int(PACE * 2 * SPLIT * a.head_dim * DTYPE_BYTES[a.k_pages.dtype])


OP = Op(
    name="attention",
    doc=(
        "partial[t, s, h] = (sum_j e^(s_j - m) v_j, m, sum_j e^(s_j - m)) over split s's keys; "
        "of one split y[t, h] = the first over the last"
    ),
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("rows", "i32", "[tokens, 2] (sequence, position) of each token"),
        tensor("page_table", "i32", "[sequences, pages] physical page of each logical one"),
        tensor("q", "f32", "[tokens, heads * head_dim] rotated queries"),
        tensor("k_pages", "kv", "[pages, kv_heads, page, head_dim] rotated keys"),
        tensor("v_pages", "kv", "[pages, kv_heads, page, head_dim] values"),
        tensor(
            "partial",
            "f32",
            "[tokens, splits, heads, head_dim + 16] sums, then m and l, unless y is given",
            optional=True,
        ),
        tensor(
            "y",
            "f32",
            "[tokens, heads * head_dim] output, sums over l, where a token sees one split",
            optional=True,
        ),
        integer("heads", "query heads"),
        integer("kv_heads", "key-value heads; heads is a multiple of it"),
        integer("head_dim", "columns of a head, a multiple of 16"),
        integer("page", "keys in a page, a multiple of 16"),
        integer("splits", "splits kept of a token: split s is at s % splits"),
        integer("split_step", "places from a tile to the next, without a divisor of splits"),
        integer("window", "keys a query sees, its own included; 0: all up to its own"),
        integer("pages_per_sequence", "columns of the page table"),
        real("scale", "factor of the scores"),
    ),
    tiles=tiles,
    access=access,
    valid=valid,
    arena=arena,
    shared=shared,
    rows=lambda a: a.q.shape[0],  # a GPU's worker notes where each token is
    streams=streams,
    seldom=lambda a: not a.window,  # that all splits of the longest context are there
    awaits=("q",),
    order=(
        "CPU: score = scale * (q . k as in gemm); blocks of 16 keys at absolute positions, "
        "ascending: m' = max(m, block), l' = fma(l, e^(m - m'), sum of the block's lanes joined "
        "in halves), acc' = acc * e^(m - m'), then one fused multiply-add a key, ascending. "
        "GPU, bfloat16 cache and heads of 64 or 128: blocks go to 8 warps in turn; scores of "
        "queries rounded to bfloat16, even and odd steps of 16 columns apart; a block's weights "
        "are joined in halves, and rounded to bfloat16 when they meet the values. GPU otherwise: "
        "warp w has keys 64 w on, a lane two of them, 32 apart; fused multiply-adds, ascending. "
        "Both: warps in order by fused multiply-adds with e^(m_w - m). y = (acc + 0) / l"
    ),
    folder=Path(__file__).parent,
)
