"""Joins the splits of paged attention, in index order."""

from pathlib import Path

import numpy as np

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, same, shape_is, within

COLUMNS = 64  # of a unit of work, a warp's on a GPU
WARPS = 8  # of a worker there


def warps_for(splits: int) -> int:
    """Warps of a GPU's worker that join a unit, where a token may see `splits` splits."""
    return 1 if splits <= 16 else WARPS


def across(a):
    """Units of a head."""
    return -(-a.head_dim // COLUMNS)


def units(a):
    """Units of a tile."""
    return WARPS // a.warps


def parts(a):
    """Tiles of a token."""
    return -(-a.heads * across(a) // units(a))


def access(a, tile):
    """A tile is some units of one token, over all its splits."""
    token, first = tile // parts(a), tile % parts(a) * units(a)
    end = np.minimum(first + units(a), a.heads * across(a))
    heads = (first // across(a), (end - 1) // across(a) + 1)
    begin, behind = (
        unit // across(a) * a.head_dim + unit % across(a) * COLUMNS for unit in (first, end)
    )
    yield immutable("count", (0, 1))
    yield immutable("rows", (0, a.rows.shape[0]), (0, 2))
    yield read("partial", (token, token + 1), (0, a.splits), heads)
    yield write("y", (token, token + 1), (begin, behind))


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.y.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "heads", "splits")
    yield from multiple_of(a, 16, "head_dim")
    yield from within(a, "window", 0)
    if a.warps not in (1, WARPS):
        yield f"warps is {a.warps}, neither 1 nor {WARPS}"
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
        integer("warps", "of a GPU's worker that join 64 columns: 1, or all 8", default=1),
    ),
    tiles=lambda a: a.y.shape[0] * parts(a),
    access=access,
    valid=valid,
    arena=lambda a: 4 * 16 * a.splits,  # of one head: a vector e^(m_s - m) for each split
    # sums of 64 columns and l by half warps, and m
    shared=lambda a, rows: 4 * WARPS * 132 if a.warps > 1 else 0,
    order=(
        "m = the largest m_s; splits ascending from the first live one: acc' = fma(acc_s, "
        "e^(m_s - m), acc), l' = fma(l_s, e^(m_s - m), l); y = acc / l. "
        "GPU: split after split to 16 sums, which are joined in halves, i + 8 to i first"
    ),
    folder=Path(__file__).parent,
)
