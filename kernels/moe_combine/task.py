"""The moe_combine body: one token's weighted sum of its experts."""

from mkport.machines.cpu.norm import norm_row
from mkport.machines.cpu.vector import (
    add,
    body,
    fma,
    get_f32,
    get_i32,
    load_f32,
    splat,
    store_f32,
    zeros,
)


@body
def moe_combine(a, tile, arena):
    """out (x) = x (+ more) + sum over c of weights[token, c] y[token, c]; h = norm(out)."""
    columns = 1024 if a.w == 0 else a.n  # a norm needs the whole row
    parts = (a.n + columns - 1) // columns
    token, begin = tile // parts, tile % parts * columns
    if token >= get_i32(a.count, 0):
        return
    first, x = token * a.top, token * a.n
    out = a.x if a.out == 0 else a.out
    for i in range(begin, min(begin + columns, a.n), 16):
        total = zeros()
        for p in range(first, first + a.top):
            total = fma(splat(get_f32(a.weights, p)), load_f32(a.y, p * a.n + i), total)
        before = load_f32(a.x, x + i)
        if a.more != 0:
            before = add(before, load_f32(a.more, x + i))
        store_f32(out, x + i, add(before, total))
    if a.w != 0:
        norm_row(out, a.w, a.h, x, a.n, a.eps, a.mean)
