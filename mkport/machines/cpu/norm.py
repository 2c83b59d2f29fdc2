"""The norm of a row in the project's arithmetic order: RMSNorm, or LayerNorm, which takes the mean
off first.

The order of a sum over k: the 16-element slice number i goes to chain i % 4, lane by lane; then
chains (0 + 1) + (2 + 3), then the lanes (`join_sum`). It is the same in both norms: of a row whose
mean is not taken off, zeros are, which rounds nothing.
"""

from mkport.machines.cpu.vector import (
    add,
    body,
    div,
    fma,
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
def norm_centred(x, at, mean, rest):
    """Sixteen elements less the mean, which is the sum of both parts."""
    return sub(sub(load_f32(x, at), mean), rest)


@body
def norm_sum(x, at, k, mean):
    """The sum of k elements (k % 16 == 0) less `mean`."""
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
def norm_squares(x, at, k, mean, rest):
    """The sum of the squares of k centred elements, by fused multiply-add."""
    a0, a1, a2, a3 = zeros(), zeros(), zeros(), zeros()
    for i in range(at, at + k, 64):
        left = at + k - i
        v = norm_centred(x, i, mean, rest)
        a0 = fma(v, v, a0)
        if left > 16:
            v = norm_centred(x, i + 16, mean, rest)
            a1 = fma(v, v, a1)
        if left > 32:
            v = norm_centred(x, i + 32, mean, rest)
            a2 = fma(v, v, a2)
        if left > 48:
            v = norm_centred(x, i + 48, mean, rest)
            a3 = fma(v, v, a3)
    return join_sum(add(add(a0, a1), add(a2, a3)))


@body
def norm_row(x, w, y, at, k, eps, centre):
    """Stores y = centred / sqrt(mean of centred^2 + eps) * w for k elements from `at` on.

    Centred is x less its mean if `centre` says so, else x itself; y may be x.
    """
    mean, rest, columns = zeros(), zeros(), splat(k)
    if centre:
        mean = div(splat(norm_sum(x, at, k, mean)), columns)
        rest = div(splat(norm_sum(x, at, k, mean)), columns)  # what rounding left of the mean
    variance = div(splat(norm_squares(x, at, k, mean, rest)), columns)
    r = div(splat(1.0), sqrt(add(variance, splat(eps))))
    for i in range(0, k, 16):
        normed = mul(norm_centred(x, at + i, mean, rest), r)
        store_f32(y, at + i, mul(normed, load_f32(w, i)))


@body
def norm_rows(x, w, first, rows, k, eps, y):
    """Stores the norms of so many rows of x, [rows, k], from row `first` on, in `y` [rows, k]; the
    mean is not taken off."""
    for row in range(rows):
        norm_row(x + 4 * (first + row) * k, w, y + 4 * row * k, 0, k, eps, 0)
