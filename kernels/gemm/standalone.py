"""Tiled matrix product on a CPU: y = x W^T (+ residual). An ordinary Numba kernel.

Rung 3: four chains of sixteen lanes. Column k is added to sum k % 64, so that four vectors of sums
run side by side and no addition waits for the one before it. The order of the sums is written out
as a loop over 64 sums, which the compiler turns into vectors. Tiles are those of rung 2.

    python kernels/gemm/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

LANES = 16
SUMS = 4 * LANES  # four chains, each of 16 lanes
TILE = 16  # weight rows


@intrinsic
def fma(typingctx, x, y, z):
    """x * y + z, rounded once."""
    return types.float32(types.float32, types.float32, types.float32), (
        lambda context, builder, sig, args: builder.fma(*args)
    )


def widen(value):
    """A stored weight as float32: bfloat16 (uint16) is the upper half of a float32."""


@overload(widen)
def _widen(value):
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@njit(nogil=True, cache=True)
def multiply(w, x, acc):
    """Adds the products of weight row w [k] and token row x [k] to acc [4 chains * 16 lanes]."""
    whole = len(w) // SUMS * SUMS
    for k in range(0, whole, SUMS):
        for i in range(SUMS):
            acc[i] = fma(widen(w[k + i]), x[k + i], acc[i])
    for i in range(len(w) - whole):  # up to three slices are left
        acc[i] = fma(widen(w[whole + i]), x[whole + i], acc[i])


@njit(nogil=True, cache=True)
def join(acc):
    """The sum of acc [4 chains * 16 lanes]: chains (0 + 1) + (2 + 3), then lanes in halves."""
    for i in range(LANES):
        acc[i] = (acc[i] + acc[LANES + i]) + (acc[2 * LANES + i] + acc[3 * LANES + i])
    half = LANES // 2
    while half:
        for i in range(half):
            acc[i] += acc[i + half]
        half //= 2
    return acc[0]


@njit(nogil=True, cache=True)
def normed(x, w, eps):
    """x / sqrt(mean x^2 + eps) * w, row by row: x [tokens, k], w [k]; squares add up as products
    do. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019."""
    y = np.empty_like(x)
    acc = np.empty(SUMS, np.float32)
    for t in range(len(x)):
        acc[:] = 0
        for i in range(x.shape[1]):
            acc[i % SUMS] = fma(x[t, i], x[t, i], acc[i % SUMS])
        mean = join(acc) / np.float32(x.shape[1])
        r = np.float32(1) / np.sqrt(mean + np.float32(eps))
        for i in range(x.shape[1]):
            y[t, i] = (x[t, i] * r) * w[i]
    return y


@njit(nogil=True, cache=True)
def gemm(x, w, y, residual=None, norm_w=None, norm_eps=0.0, norm_y=None):
    """y = x w^T (+ residual); x [tokens, k], w [n, k], y and residual [tokens, n]. With norm_w [k],
    x's norm is multiplied in its place, and left in norm_y [tokens, k], if that is given."""
    if norm_w is not None:
        x = normed(x, norm_w, norm_eps)
    if norm_y is not None:
        norm_y[:] = x
    acc = np.empty(SUMS, np.float32)
    for n0 in range(0, len(w), TILE):  # a tile of weight rows stays in cache for every token
        for t in range(len(x)):
            for n in range(n0, min(n0 + TILE, len(w))):
                acc[:] = 0
                multiply(w[n], x[t], acc)
                total = join(acc)
                y[t, n] = total if residual is None else total + residual[t, n]


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
