"""Gated feed-forward, first half, on a CPU: y = silu(x Wg^T) * (x Wu^T). An ordinary Numba kernel.

python kernels/gemm_silu/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

LANES = 16
SUMS = 4 * LANES  # four chains, each of 16 lanes
TILE = 16  # weight rows of each of the two weights

# e^x is 2^n e^r, n = round(x log2 e), r = x - n ln 2 in two steps; coefficients of Cephes' expf.
LOG2E = np.float32(1.44269504088896341)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
P0, P1 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3)
P2, P3 = np.float32(8.3334519073e-3), np.float32(4.1665795894e-2)
P4, P5 = np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


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
def exp(x):
    """e^x below 2 ulp; x is clamped to -87 and 88. Source: expf of the Cephes library."""
    if x < np.float32(-87):
        x = np.float32(-87)
    if x > np.float32(88):
        x = np.float32(88)
    n = np.rint(x * LOG2E)
    r = fma(n, -LN2_HIGH, x)
    r = fma(n, -LN2_LOW, r)
    p = fma(P0, r, P1)
    p = fma(p, r, P2)
    p = fma(p, r, P3)
    p = fma(p, r, P4)
    p = fma(p, r, P5)
    p = fma(r * r, p, r) + np.float32(1)
    whole = np.int32(n) if n == n else np.int32(0)  # a NaN has no whole part; p is NaN then
    return p * np.uint32(np.uint32(whole + 127) << np.uint32(23)).view(np.float32)


@njit(nogil=True, cache=True)
def gemm_silu(x, w_gate, w_up, y, norm_w=None, norm_eps=0.0):
    """y = silu(x Wg^T) * (x Wu^T); x [tokens, k], w_gate and w_up [n, k], y [tokens, n]. With
    norm_w [k], x's norm is multiplied in its place.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
    """
    if norm_w is not None:
        x = normed(x, norm_w, norm_eps)
    acc = np.empty(SUMS, np.float32)
    one = np.float32(1)
    for n0 in range(0, len(w_gate), TILE):  # a tile's weights stay in cache for every token
        for t in range(len(x)):
            for n in range(n0, min(n0 + TILE, len(w_gate))):
                acc[:] = 0
                multiply(w_gate[n], x[t], acc)
                gate = join(acc)
                acc[:] = 0
                multiply(w_up[n], x[t], acc)
                y[t, n] = (gate / (one + exp(-gate))) * join(acc)


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
