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
    step = a.heads * row  # from a split to the next
    for h in range(first_head, min(first_head + 8, a.heads)):
        start = (token * a.splits * a.heads + h) * row
        attention_combine_head(a, start + first * step, start + end * step, step, h, token, arena)


@body
def attention_combine_head(a, start, end, step, head, token, arena):
    """Joins the rows start, start + step, ... of partial; the arena keeps their e^(m_s - m)."""
    m = splat(get_f32(a.partial, start + a.head_dim))
    for s in range(start + step, end, step):
        m = largest(splat(get_f32(a.partial, s + a.head_dim)), m)
    weight_sum = zeros()
    for s in range(start, end, step):
        factor = exp(sub(splat(get_f32(a.partial, s + a.head_dim)), m))
        weight_sum = fma(splat(get_f32(a.partial, s + a.head_dim + 1)), factor, weight_sum)
        store_f32(arena, (s - start) // step * 16, factor)
    for d in range(0, a.head_dim, 16):
        y = zeros()
        for s in range(start, end, step):
            y = fma(load_f32(a.partial, s + d), load_f32(arena, (s - start) // step * 16), y)
        store_f32(a.y, (token * a.heads + head) * a.head_dim + d, div(y, weight_sum))
