"""Tiled matrix product on a CPU: y = x W^T (+ residual). An ordinary Numba kernel.

Rung 3: a tile of 16 weight rows stays in the cache while every token uses it, and four chains of
sums run side by side, so that no addition waits for the one before it. The order of the sums is
written out as loops over lanes and chains, which the compiler turns into vectors.

    python kernels/gemm/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

LANES, CHAINS = 16, 4
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
    """Adds the products of a weight row and a token's row to acc [4 chains, 16 lanes]."""
    whole = len(w) // (CHAINS * LANES) * (CHAINS * LANES)
    a, b, c, d = acc[0], acc[1], acc[2], acc[3]
    for k in range(0, whole, CHAINS * LANES):
        ws, xs = w[k : k + CHAINS * LANES], x[k : k + CHAINS * LANES]
        for lane in range(LANES):
            a[lane] = fma(widen(ws[lane]), xs[lane], a[lane])
            b[lane] = fma(widen(ws[lane + 16]), xs[lane + 16], b[lane])
            c[lane] = fma(widen(ws[lane + 32]), xs[lane + 32], c[lane])
            d[lane] = fma(widen(ws[lane + 48]), xs[lane + 48], d[lane])
    for k in range(whole, len(w)):  # up to three slices are left
        chain, lane = (k - whole) // LANES, k % LANES
        acc[chain, lane] = fma(widen(w[k]), x[k], acc[chain, lane])


@njit(nogil=True, cache=True)
def join(acc):
    """Joins chains (0 + 1) + (2 + 3), then lanes in halves."""
    lanes = acc[0]
    for lane in range(LANES):
        lanes[lane] = (acc[0, lane] + acc[1, lane]) + (acc[2, lane] + acc[3, lane])
    half = LANES // 2
    while half:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@njit(nogil=True, cache=True)
def gemm(x, w, y, residual=None):
    """y = x w^T (+ residual); x [tokens, k], w [n, k], y and residual [tokens, n]."""
    acc = np.empty((CHAINS, LANES), np.float32)
    for n0 in range(0, len(w), TILE):  # a tile of weight rows stays in cache for every token
        for t in range(len(x)):
            for n in range(n0, min(n0 + TILE, len(w))):
                acc[:] = 0
                multiply(w[n], x[t], acc)
                total = join(acc)
                y[t, n] = total if residual is None else total + residual[t, n]


if __name__ == "__main__":
    from mkport.testing import run_rung

    run_rung(__file__)
