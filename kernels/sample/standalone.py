"""The next token's best candidate of each 4096 columns on a CPU. An ordinary Numba kernel.

Adding Gumbel noise to logits and taking the largest draws from their softmax. The noise depends on
(seed, choice, position, column) alone, so a draw is the same whatever runs beside it.

    python kernels/sample/standalone.py
"""

import numpy as np
from numba import njit

COLUMNS = 4096

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # Philox's multipliers
W0, W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)  # what a round adds to the key
LOW, HALF, ZERO = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(0)

# log: n ln 2 + a polynomial in f = m - 1, m from 1 / sqrt 2 to sqrt 2 (coefficients: Cephes' logf)
L0, L1, L2 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
L3, L4, L5 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
L6, L7, L8 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
ROOT_HALF = np.int32(0x3F3504F3)  # the bits of 1 / sqrt 2
ONE, HALF_ONE, QUARTER = np.float32(1), np.float32(0.5), np.float32(0.25)
SCALE, BELOW_ONE = np.float32(2.0**-32), np.float32(1 - 2**-24)


@njit(nogil=True, cache=True)
def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10 of counter c0..c3 and key k0, k1: four words, each in the low half of a uint64.

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    for _ in range(10):
        p0, p1 = c0 * M0, c2 * M1
        c0, c2 = (p1 >> HALF) ^ c1 ^ k0, (p0 >> HALF) ^ c3 ^ k1
        c1, c3 = p1 & LOW, p0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return c0, c1, c2, c3


@njit(nogil=True, cache=True)
def log_near(f, n):
    """log(1 + f) + n ln 2, each step rounded to float32. Source: logf of the Cephes library."""
    z = f * f
    p = ((((((((L0 * f + L1) * f + L2) * f + L3) * f + L4) * f + L5) * f + L6) * f + L7) * f) + L8
    y = p * f * z + LN2_LOW * n
    return f + (y - HALF_ONE * z) + LN2_HIGH * n


@njit(nogil=True, cache=True)
def log(x):
    """log x of a normal positive float32."""
    bits = np.float32(x).view(np.int32)
    n = np.int32(bits - ROOT_HALF) >> np.int32(23)
    m = np.int32(bits - np.int32(n << np.int32(23))).view(np.float32)
    return log_near(m - ONE, np.float32(n))


@njit(nogil=True, cache=True)
def gumbel(word):
    """-log(-log(1 - v)) of a word as a number v between 0 and 1; fine where v is small."""
    v = min((np.float32(word) + HALF_ONE) * SCALE, BELOW_ONE)
    rest = log_near(-v, np.float32(0)) if v < QUARTER else log(ONE - v)
    return -log(-rest)


@njit(nogil=True, cache=True)
def sample(x, temperatures, words, positions, best, at):
    """best[t, p], at[t, p]: the largest x[t, n] / temperature + noise of block p, and its first n.

    x [rows, n]; words [rows, 3] (seed low, seed high, choice) and positions [rows] as uint64;
    temperatures [rows], 0: no noise. best and at [rows, blocks]: NaN and -1 where a logit of the
    block is not finite. Source: the Gumbel-max trick, as in Maddison, Tarlow and Minka 2014.
    """
    four = np.empty(4, np.uint64)
    for t in range(len(x)):
        for block in range(best.shape[1]):
            first, end = block * COLUMNS, min((block + 1) * COLUMNS, x.shape[1])
            value, index = np.float32(-np.inf), end
            for n in range(first, end):
                score = x[t, n]
                if not np.isfinite(score):
                    value, index = np.float32(np.nan), -1
                    break
                if temperatures[t] > 0:
                    if n % 4 == 0:
                        four[0], four[1], four[2], four[3] = philox(
                            np.uint64(n // 4), positions[t], words[t, 2], ZERO,
                            words[t, 0], words[t, 1],
                        )  # fmt: skip
                    score = score / temperatures[t] + gumbel(four[n % 4])
                if score > value or index == end:
                    value, index = score, n
            best[t, block], at[t, block] = value, index


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
