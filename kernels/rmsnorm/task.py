"""The rmsnorm body: one token, group by group."""

from mkport.machines.cpu.vector import (
    add,
    body,
    div,
    fma,
    get_i32,
    join_sum,
    load_f32,
    mul,
    splat,
    sqrt,
    store_f32,
    zeros,
)


@body
def rmsnorm_squares(x, at, k):
    """The sum of the squares of k elements, slice i in chain i % 4."""
    a0, a1, a2, a3 = zeros(), zeros(), zeros(), zeros()
    for i in range(at, at + k, 64):
        left = at + k - i
        v = load_f32(x, i)
        a0 = fma(v, v, a0)
        if left > 16:
            v = load_f32(x, i + 16)
            a1 = fma(v, v, a1)
        if left > 32:
            v = load_f32(x, i + 32)
            a2 = fma(v, v, a2)
        if left > 48:
            v = load_f32(x, i + 48)
            a3 = fma(v, v, a3)
    return join_sum(add(add(a0, a1), add(a2, a3)))


@body
def rmsnorm(a, tile, arena):
    """y[tile] = x[tile] / sqrt(mean square + eps) * w, in each group."""
    if tile >= get_i32(a.count, 0):
        return
    for group in range(a.groups):
        at = (tile * a.groups + group) * a.k
        mean = div(splat(rmsnorm_squares(a.x, at, a.k)), splat(a.k))
        r = div(splat(1.0), sqrt(add(mean, splat(a.eps))))
        for i in range(0, a.k, 16):
            normed = mul(load_f32(a.x, at + i), r)
            store_f32(a.y, at + i, mul(normed, load_f32(a.w, i)))
