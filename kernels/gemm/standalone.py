"""Tiled matrix product on a CPU: y = x W^T (+ residual). An ordinary Numba kernel.

Rung 3: four weight rows and four tokens are multiplied together, so that each loaded number is
used four times. Sums run in 16 lanes and 4 chains, written out as loops that the compiler turns
into vectors: it may not reorder a float sum by itself.

    python kernels/gemm/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

LANES, CHAINS = 16, 4


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
        return lambda value: (np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@njit(nogil=True, cache=True)
def join(acc):
    """Joins chains (0 + 1) + (2 + 3), then lanes in halves."""
    lanes = (acc[0] + acc[1]) + (acc[2] + acc[3])
    half = LANES // 2
    while half:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@njit(nogil=True, cache=True)
def gemm(x, w, y, residual=None):
    """y[t, n] = sum_k x[t, k] w[n, k] (+ residual[t, n]); x [tokens, k], w [n, k], y [tokens, n]."""
    tokens, k = x.shape
    for n0 in range(0, len(w), 4):
        rows = min(4, len(w) - n0)
        for t0 in range(0, tokens, 4):
            group = min(4, tokens - t0)
            acc = np.zeros((4, 4, CHAINS, LANES), np.float32)
            for k0 in range(0, k, LANES):
                chain = (k0 // LANES) % CHAINS
                for t in range(group):
                    for r in range(rows):
                        for lane in range(LANES):
                            acc[t, r, chain, lane] = fma(
                                widen(w[n0 + r, k0 + lane]), x[t0 + t, k0 + lane], acc[t, r, chain, lane]
                            )
            for t in range(group):
                for r in range(rows):
                    total = join(acc[t, r])
                    if residual is not None:
                        total += residual[t0 + t, n0 + r]
                    y[t0 + t, n0 + r] = total
