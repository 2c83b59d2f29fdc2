"""Joins the splits of paged attention, in index order."""

from pathlib import Path

import numpy as np

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, same, shape_is, within

HEADS = 8  # of a tile: a GPU worker has a warp for each


def parts(a):
    """Tiles of a token."""
    return -(-a.heads // HEADS)


def access(a, tile):
    """A tile is up to 8 heads of one token, over all its splits."""
    token, first = tile // parts(a), tile % parts(a) * HEADS
    end = np.minimum(first + HEADS, a.heads)
    yield immutable("count", (0, 1))
    yield immutable("rows", (0, a.rows.shape[0]), (0, 2))
    yield read("partial", (token, token + 1), (0, a.splits), (first, end))
    yield write("y", (token, token + 1), (first * a.head_dim, end * a.head_dim))


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.y.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "heads", "splits")
    yield from multiple_of(a, 16, "head_dim")
    yield from within(a, "window", 0)
    yield from shape_is(a, "rows", tokens, 2)
    logical = (tokens, "splits", "heads")
    yield from shape_is(a, "partial", *logical, a.head_dim + 16, logical=logical)
    yield from shape_is(a, "y", tokens, "heads * head_dim")
    yield same(a.partial, "window", a.window)


OP = Op(
    name="attention_combine",
    doc="y[t, h] = sum_s e^(m_s - m) acc_s / sum_s e^(m_s - m) l_s, over the live splits",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("rows", "i32", "[tokens, 2] (sequence, position) of each token"),
        tensor("partial", "f32", "[tokens, splits, heads, head_dim + 16] sums, then m and l"),
        tensor("y", "f32", "[tokens, heads * head_dim] output"),
        integer("heads", "query heads"),
        integer("head_dim", "columns of a head, a multiple of 16"),
        integer("splits", "splits kept of a token: split s is at s % splits"),
        integer("window", "keys a query sees, its own included; 0: all up to its own"),
    ),
    tiles=lambda a: a.y.shape[0] * parts(a),
    access=access,
    valid=valid,
    arena=lambda a: 4 * 16 * a.splits,  # of one head: a vector e^(m_s - m) for each split
    shared=lambda a, rows: 4 * 8 * 2 * a.splits,  # each warp's factors, and l of its splits
    order=(
        "m = the largest m_s; splits ascending from the first live one: acc' = fma(acc_s, "
        "e^(m_s - m), acc), l' = fma(l_s, e^(m_s - m), l); y = acc / l. "
        "GPU: the same, but l in 32 lanes, split after split, joined in halves"
    ),
    folder=Path(__file__).parent,
)
