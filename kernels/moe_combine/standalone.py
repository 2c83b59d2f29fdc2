"""Adds a token's weighted experts to its residual row on a CPU, and may norm the row then. An
ordinary Numba kernel.

python kernels/moe_combine/standalone.py
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
def mean_of(row, square):
    """The mean of row [k], or of its squares."""
    acc = np.zeros((CHAINS, LANES), np.float32)
    for i0 in range(0, len(row), LANES):
        chain = acc[i0 // LANES % CHAINS]
        for lane in range(LANES):
            v = row[i0 + lane]
            chain[lane] = fma(v, v, chain[lane]) if square else chain[lane] + v
    return join(acc) / np.float32(len(row))


@njit(nogil=True, cache=True)
def moe_combine(weights, y, x, more=None, out=None, w=None, h=None, eps=1e-5, centre=False):
    """x += sum over c of weights[:, c] y[:, c]; weights [tokens, top], y [tokens, top, n]; before
    that x += more [tokens, n], if it is given. With out [tokens, n] the sum goes there alone.

    With w [n] and h [tokens, n], h = sum / sqrt(mean sum^2 + eps) * w; `centre`: less its mean.
    """
    total = np.empty(x.shape[1], np.float32)
    for t in range(len(x)):
        total[:] = 0
        for c in range(weights.shape[1]):  # best first
            for i in range(len(total)):
                total[i] = fma(weights[t, c], y[t, c, i], total[i])
        to = x[t] if out is None else out[t]
        for i in range(len(total)):
            before = x[t, i] + more[t, i] if more is not None else x[t, i]
            to[i] = before + total[i]
        if w is not None:
            row = to.copy()
            if centre:
                row -= mean_of(row, False)
                row -= mean_of(row, False)  # what rounding left of the mean
            r = np.float32(1) / np.sqrt(mean_of(row, True) + np.float32(eps))
            for i in range(len(row)):
                h[t, i] = (row[i] * r) * w[i]


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
