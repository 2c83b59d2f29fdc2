"""Joins the splits of paged attention on a CPU. An ordinary Numba kernel.

Each split summed e^(s_j - m_s) v_j against its own maximum m_s; times e^(m_s - m) its sums are
what they would be against the maximum m of all splits, and can be added.

    python kernels/attention_combine/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

SPLIT = 512  # keys

# exp: 2^n times a polynomial in r = x - n ln 2 (coefficients of Cephes' expf)
LOG2E = np.float32(1.44269504088896341)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
SHIFT = np.float32(1.5 * 2**23)  # a float32 above it has no fraction
LOWEST, HIGHEST, ONE = np.float32(-87), np.float32(88), np.float32(1)


@intrinsic
def fma(typingctx, x, y, z):
    """x * y + z, rounded once."""
    return types.float32(types.float32, types.float32, types.float32), (
        lambda context, builder, sig, args: builder.fma(*args)
    )


@njit(nogil=True, cache=True)
def exp(x):
    """e^x, within 2 ulp; below e^-87 it is e^-87. Source: expf of the Cephes library."""
    x = LOWEST if x < LOWEST else x
    x = HIGHEST if x > HIGHEST else x
    shifted = x * LOG2E + SHIFT
    n = shifted - SHIFT  # x log2 e, rounded
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    p = fma(fma(fma(fma(fma(P0, r, P1), r, P2), r, P3), r, P4), r, P5)
    p = fma(r * r, p, r) + ONE
    bits = np.int32(np.float32(shifted).view(np.int32) + np.int32(127))  # its low bits are n's
    return p * np.int32(bits << np.int32(23)).view(np.float32)


@njit(nogil=True, cache=True)
def attention_combine(partial, positions, window, y):
    """y[t, h] = sum_s e^(m_s - m) acc_s / sum_s e^(m_s - m) l_s, over the splits that t sees.

    partial [tokens, splits, heads, head_dim + 16] (acc, then m and l), split s at s % splits;
    positions [tokens]; y [tokens, heads, head_dim]. `window` 0: a token sees all keys up to its
    own.
    """
    tokens, heads, dim = y.shape
    splits = partial.shape[1]
    for t in range(tokens):
        oldest = max(positions[t] - window + 1, 0) if window > 0 else 0
        first, end = oldest // SPLIT, positions[t] // SPLIT + 1
        for h in range(heads):
            m = partial[t, first % splits, h, dim]
            for s in range(first + 1, end):
                m = max(m, partial[t, s % splits, h, dim])
            sums, weight_sum = y[t, h], np.float32(0)
            sums[:] = 0
            for s in range(first, end):
                split = partial[t, s % splits, h]
                factor = exp(split[dim] - m)
                weight_sum = fma(split[dim + 1], factor, weight_sum)
                for d in range(dim):
                    sums[d] = fma(split[d], factor, sums[d])
            for d in range(dim):
                sums[d] /= weight_sum


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
