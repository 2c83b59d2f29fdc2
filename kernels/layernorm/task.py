"""The layernorm body: one token."""

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
    sub,
    zeros,
)


@body
def layernorm_sum(x, at, k, mean):
    """The sum of k elements less `mean`, slice i in chain i % 4."""
    a0, a1, a2, a3 = zeros(), zeros(), zeros(), zeros()
    for i in range(at, at + k, 64):
        left = at + k - i
        a0 = add(a0, sub(load_f32(x, i), mean))
        if left > 16:
            a1 = add(a1, sub(load_f32(x, i + 16), mean))
        if left > 32:
            a2 = add(a2, sub(load_f32(x, i + 32), mean))
        if left > 48:
            a3 = add(a3, sub(load_f32(x, i + 48), mean))
    return join_sum(add(add(a0, a1), add(a2, a3)))


@body
def layernorm_centred(x, at, mean, rest):
    """Sixteen elements less the mean, which is the sum of both parts."""
    return sub(sub(load_f32(x, at), mean), rest)


@body
def layernorm_squares(x, at, k, mean, rest):
    """The sum of the squares of k centred elements, slice i in chain i % 4."""
    a0, a1, a2, a3 = zeros(), zeros(), zeros(), zeros()
    for i in range(at, at + k, 64):
        left = at + k - i
        v = layernorm_centred(x, i, mean, rest)
        a0 = fma(v, v, a0)
        if left > 16:
            v = layernorm_centred(x, i + 16, mean, rest)
            a1 = fma(v, v, a1)
        if left > 32:
            v = layernorm_centred(x, i + 32, mean, rest)
            a2 = fma(v, v, a2)
        if left > 48:
            v = layernorm_centred(x, i + 48, mean, rest)
            a3 = fma(v, v, a3)
    return join_sum(add(add(a0, a1), add(a2, a3)))


@body
def layernorm(a, tile, arena):
    """y[tile] = (x[tile] - mean) / sqrt(variance + eps) * w."""
    if tile >= get_i32(a.count, 0):
        return
    at, k = tile * a.k, splat(a.k)
    mean = div(splat(layernorm_sum(a.x, at, a.k, zeros())), k)
    rest = div(splat(layernorm_sum(a.x, at, a.k, mean)), k)  # what rounding left of the mean
    variance = div(splat(layernorm_squares(a.x, at, a.k, mean, rest)), k)
    r = div(splat(1.0), sqrt(add(variance, splat(a.eps))))
    for i in range(0, a.k, 16):
        normed = mul(layernorm_centred(a.x, at + i, mean, rest), r)
        store_f32(a.y, at + i, mul(normed, load_f32(a.w, i)))
