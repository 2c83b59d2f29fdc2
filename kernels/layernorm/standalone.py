"""LayerNorm on a CPU: y = (x - mean) / sqrt(variance + eps) * w. An ordinary Numba kernel.

python kernels/layernorm/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

LANES, CHAINS = 16, 4


@intrinsic
def fma(typingctx, x, y, z):
    """x * y + z, rounded once."""
    return types.float32(types.float32, types.float32, types.float32), (
        lambda context, builder, sig, args: builder.fma(*args)
    )


@njit(nogil=True, cache=True)
def join(acc):
    """The sum of acc [4 chains, 16 lanes]: chains (0 + 1) + (2 + 3), then lanes in halves."""
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
def total(row, mean, acc):
    """The sum of the values of row [k] less `mean`; acc [4 chains, 16 lanes] is scratch."""
    acc[:] = 0
    for i0 in range(0, len(row), LANES):
        chain = acc[i0 // LANES % CHAINS]
        for lane in range(LANES):
            chain[lane] += row[i0 + lane] - mean
    return join(acc)


@njit(nogil=True, cache=True)
def layernorm(x, w, y, eps):
    """y[t] = (x[t] - mean) / sqrt(variance + eps) * w; x, y [rows, k], w [k]; y may be x.

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    k = x.shape[1]
    acc = np.empty((CHAINS, LANES), np.float32)
    for t in range(len(x)):
        mean = total(x[t], np.float32(0), acc) / np.float32(k)
        rest = total(x[t], mean, acc) / np.float32(k)  # what rounding left of the mean
        acc[:] = 0
        for i0 in range(0, k, LANES):
            chain = acc[i0 // LANES % CHAINS]
            for lane in range(LANES):
                centred = (x[t, i0 + lane] - mean) - rest
                chain[lane] = fma(centred, centred, chain[lane])
        variance = join(acc) / np.float32(k)
        r = np.float32(1) / np.sqrt(variance + np.float32(eps))
        for i in range(k):
            y[t, i] = (((x[t, i] - mean) - rest) * r) * w[i]


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
