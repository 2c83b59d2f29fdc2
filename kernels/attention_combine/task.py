"""The attention_combine body: the splits of up to 8 heads of a token joined, head by head."""

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
    """y[token, 8 heads] = the splits' sums over the splits' l, each times e^(m_s - m)."""
    parts = (a.heads + 7) // 8
    token, first_head = tile // parts, tile % parts * 8
    if token >= get_i32(a.count, 0):
        return
    position = get_i32(a.rows, 2 * token + 1)
    oldest = max(position - a.window + 1, 0) if a.window > 0 else 0
    first, end = oldest // ATTENTION_COMBINE_SPLIT, position // ATTENTION_COMBINE_SPLIT + 1
    row = a.head_dim + 16  # of partial
    for h in range(first_head, min(first_head + 8, a.heads)):
        start = (token * a.splits * a.heads + h) * row
        attention_combine_head(a, start, first % a.splits, end - first, h, token, arena)


@body
def attention_combine_head(a, start, first, count, head, token, arena):
    """Joins `count` splits of a head, whose places begin at `start` of partial: from place `first`
    on, behind the last the first again. The arena keeps their e^(m_s - m)."""
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
    for d in range(0, a.head_dim, 16):
        y, at = zeros(), start + first * step
        for s in range(count):
            y = fma(load_f32(a.partial, at + d), load_f32(arena, s * 16), y)
            at = start if at + step == end else at + step
        store_f32(a.y, (token * a.heads + head) * a.head_dim + d, div(y, weight_sum))
