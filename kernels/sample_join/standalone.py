"""The best of each row's blocks, of rows that are cut the best of what the cuts leave, on a CPU. An
ordinary Numba kernel: it sorts.

    python kernels/sample_join/standalone.py
"""

import math

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

GROUP, UNIT = 128, np.float32(2.0**40)  # a weight of 1
# words of a row's way to choose
TEMPERATURE, LOW_WORD, HIGH_WORD, CHOICE, FLAGS, TOP_K, TOP_P, MIN_P = range(8)
TOLD, GIVEN = 11, 12
COUNTED, CUTS = 3, 32  # flags

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

# exp: 2^n times a polynomial in r = x - n ln 2 (coefficients: Cephes' expf)
E0, E1, E2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
E3, E4, E5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
LOG2E, LEAST = np.float32(1.44269504088896341), np.float32(-87)


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


@intrinsic
def fma(typingctx, x, y, z):
    """x * y + z, rounded once."""
    return types.float32(types.float32, types.float32, types.float32), (
        lambda context, builder, sig, args: builder.fma(*args)
    )


@njit(nogil=True, cache=True)
def exp(x):
    """e^x of a float32 that is not above 0, each step rounded to float32. Source: expf of the
    Cephes library."""
    x = max(x, LEAST)
    n = np.float32(round(np.float64(np.float32(x * LOG2E))))
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    p = fma(fma(fma(fma(fma(E0, r, E1), r, E2), r, E3), r, E4), r, E5)
    p = fma(r * r, p, r) + ONE
    return np.float32(math.ldexp(np.float64(p), int(n)))


@njit(nogil=True, cache=True)
def gumbel(word):
    """-log(-log(1 - v)) of a word as a number v between 0 and 1; fine where v is small."""
    v = min((np.float32(word) + HALF_ONE) * SCALE, BELOW_ONE)
    rest = log_near(-v, np.float32(0)) if v < QUARTER else log(ONE - v)
    return -log(-rest)


@njit(nogil=True, cache=True)
def real(way, word):
    """A word of a `way` [16] as the float32 that it holds the bits of."""
    return np.int32(way[word]).view(np.float32)


@njit(nogil=True, cache=True)
def total(peaks, sums):
    """The weight of a row, in whole 2^-40, from each group's largest, `peaks` [groups], and `sums`
    [groups] of e^(value - largest)."""
    weight, top = np.int64(0), peaks.max()
    for group in range(len(peaks)):
        weight += np.int64(sums[group] * exp(peaks[group] - top) * UNIT)
    return weight


@njit(nogil=True, cache=True)
def left_of(scores, way, peaks, sums):
    """The columns that min_p, then top_k, then top_p of a `way` [16] leave of `scores` [n], the
    largest first.

    Source: min_p, Nguyen et al. 2024; top_k, Fan, Lewis and Dauphin 2018; top_p, Holtzman et al.,
    "The Curious Case of Neural Text Degeneration", 2019.
    """
    order, top = np.argsort(-scores, kind="mergesort"), scores.max()
    count = int((scores > -np.inf).sum())
    if way[FLAGS] & CUTS:
        while scores[order[count - 1]] < top + real(way, MIN_P):
            count -= 1
    if way[TOP_K]:
        count = min(count, way[TOP_K])
    if way[TOP_P]:
        weight = np.int64(0)
        for i in range(count):
            weight += np.int64(exp(scores[order[i]] - top) * UNIT)
        if not way[FLAGS] & CUTS and way[TOP_K] == 0:
            weight = total(peaks, sums)
        whole, share = np.uint64(weight), np.uint64(way.view(np.uint32)[TOP_P])
        needed = (whole >> HALF) * share + (((whole & LOW) * share) >> HALF)
        needed, reached, i = max(needed, np.uint64(1)), np.uint64(0), 0
        while i < count and reached < needed:
            reached += np.uint64(np.int64(exp(scores[order[i]] - top) * UNIT))
            i += 1
        count = i
    return order[:count]


@njit(nogil=True, cache=True)
def sample_join(x, ways, places, scores, best, at, peaks, sums, tally, y, ids, logprobs):
    """y[t]: the column of the first largest best[t, p], or of the largest score + noise that the
    cuts of way [16] leave; -1 where an at[t, p] is below 0, -2 where no score is above -infinity.

    x [rows, n]; ways [rows, 16]; places [rows, 2] (sequence, position); scores [rows, padded n];
    best, at [rows, blocks]; peaks, sums [rows, 2, groups]. tally [sequences, padded n] counts y.
    Rows that are told get ids [20], the largest x first, and logprobs [21], that of y before them.
    """
    for t in range(len(x)):
        way = ways[t]
        first = 0
        for p in range(best.shape[1]):
            if at[t, p] < 0:
                first = p
                break
            if best[t, p] > best[t, first]:
                first = p
        y[t] = at[t, first]
        if y[t] < 0:
            continue
        cut = way[TOP_K] != 0 or way[TOP_P] != 0 or way[FLAGS] & CUTS != 0
        if best[t, first] == -np.inf:
            y[t] = -2
        elif real(way, TEMPERATURE) > 0 and cut:
            left = left_of(scores[t], way, peaks[t, 0], sums[t, 0])
            y[t] = race(scores[t], left, way, np.uint64(places[t, 1]))
        if way[GIVEN]:
            y[t] = way[GIVEN] - 1
        if y[t] < 0:
            continue
        if way[FLAGS] & COUNTED:
            tally[places[t, 0], y[t]] += 1
        if way[TOLD]:
            tell(x[t], y[t], way[TOLD] - 1, total(peaks[t, 1], sums[t, 1]), ids[t], logprobs[t])


@njit(nogil=True, cache=True)
def race(scores, left, way, position):
    """The column of `left` [kept] whose scores [n] + noise is the largest, the lowest among
    equals."""
    words = way.view(np.uint32)
    k0, k1 = np.uint64(words[LOW_WORD]), np.uint64(words[HIGH_WORD])
    value, index = np.float32(-np.inf), -1
    for n in left:
        four = philox(np.uint64(n // 4), position, np.uint64(words[CHOICE]), ZERO, k0, k1)
        score = scores[n] + gumbel(four[n % 4])
        if index < 0 or score > value or (score == value and n < index):
            value, index = score, n
    return index


@njit(nogil=True, cache=True)
def tell(x, token, rivals, weight, ids, logprobs):
    """The log probabilities of a token and of the rivals of largest `x` [n] to `logprobs` [21], and
    the rivals to `ids` [20]; weight is all of x's."""
    top, base = x.max(), log(np.float32(weight) * np.float32(1 / UNIT))
    logprobs[0] = (x[token] - top) - base
    if rivals:
        order = np.argsort(-x, kind="mergesort")
        for i in range(min(rivals, len(x))):
            ids[i], logprobs[i + 1] = order[i], (x[order[i]] - top) - base


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
