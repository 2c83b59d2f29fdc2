"""The moe_combine body: one token's weighted sum of its experts."""

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
    """x[token, 1024 columns] += sum over choices of weights[token, c] y[token, c]."""
    parts = (a.n + 1023) // 1024
    token, begin = tile // parts, tile % parts * 1024
    if token >= get_i32(a.count, 0):
        return
    first, x = token * a.top, token * a.n
    for i in range(begin, min(begin + 1024, a.n), 16):
        total = zeros()
        for p in range(first, first + a.top):
            total = fma(splat(get_f32(a.weights, p)), load_f32(a.y, p * a.n + i), total)
        store_f32(a.x, x + i, add(load_f32(a.x, x + i), total))
