"""The attention_combine body: the splits of a token joined, some columns of a head at a time."""

from mkport.machines.cpu.vector import (
    body,
    div,
    exp,
    fma,
    get_f32,
    get_i32,
    largest,
    load_f32,
    splat,
    store_f32,
    sub,
    zeros,
)

ATTENTION_COMBINE_SPLIT = 512  # keys


@body
def attention_combine(a, tile, arena):
    """y[token, a tile's columns] = the splits' sums over their l, each times e^(m_s - m)."""
    across, units = (a.head_dim + 63) // 64, 8 // a.warps  # of 64 columns: a head's, and a tile's
    tiles = (a.heads * across + units - 1) // units  # of a token
    token, unit = tile // tiles, tile % tiles * units
    if token >= get_i32(a.count, 0):
        return
    position = get_i32(a.rows, 2 * token + 1)
    oldest = max(position - a.window + 1, 0) if a.window > 0 else 0
    first, end = oldest // ATTENTION_COMBINE_SPLIT, position // ATTENTION_COMBINE_SPLIT + 1
    row = a.head_dim + 16  # of partial
    behind = min(unit + units, a.heads * across)
    while unit < behind:
        h, column = unit // across, unit % across * 64
        unit = min(h * across + across, behind)  # where the head's columns end, or the tile's
        columns = min((unit - h * across) * 64, a.head_dim)
        start = (token * a.splits * a.heads + h) * row
        attention_combine_head(
            a, start, first % a.splits, end - first, (token, h, column, columns), arena
        )


@body
def attention_combine_head(a, start, first, count, where, arena):
    """Joins `count` splits of a head, whose places begin at `start` of partial: from place `first`
    on, behind the last the first again. `where` is (token, head, first column, behind the last).
    The arena keeps the splits' e^(m_s - m)."""
    token, head, column, columns = where
    step = a.heads * (a.head_dim + 16)  # from a place to the next
    end = start + a.splits * step
    m, at = splat(get_f32(a.partial, start + first * step + a.head_dim)), start + first * step
    for _ in range(1, count):
        at = start if at + step == end else at + step
        m = largest(splat(get_f32(a.partial, at + a.head_dim)), m)
    weight_sum, at = zeros(), start + first * step
    for s in range(count):
        factor = exp(sub(splat(get_f32(a.partial, at + a.head_dim)), m))
        weight_sum = fma(splat(get_f32(a.partial, at + a.head_dim + 1)), factor, weight_sum)
        store_f32(arena, s * 16, factor)
        at = start if at + step == end else at + step
    for d in range(column, columns, 16):
        y, at = zeros(), start + first * step
        for s in range(count):
            y = fma(load_f32(a.partial, at + d), load_f32(arena, s * 16), y)
            at = start if at + step == end else at + step
        store_f32(a.y, (token * a.heads + head) * a.head_dim + d, div(y, weight_sum))
