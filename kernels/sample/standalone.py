"""The next token's best candidate of each 4096 columns on a CPU. An ordinary Numba kernel.

Adding Gumbel noise to logits and taking the largest draws from their softmax. The noise depends on
(seed, choice, position, column) alone, so a draw is the same whatever runs beside it.

    python kernels/sample/standalone.py
"""

import math

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

COLUMNS, GROUP = 4096, 128
# words of a row's way to choose
TEMPERATURE, LOW_WORD, HIGH_WORD, CHOICE, FLAGS, TOP_K, TOP_P, MIN_P = range(8)
REPETITION, FREQUENCY, PRESENCE, TOLD = 8, 9, 10, 11
REPEATS, COUNTS, BIASED, EARLY, MASKED, CUTS = 1, 2, 4, 8, 16, 32  # flags
EDITS = 31  # those that change logits
PROMPT, END = 1 << 28, 1 << 29  # of a token's tally

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
def is_cut(way):
    """Whether a row's way [16] leaves tokens out before it draws."""
    some = way[TOP_K] != 0 or way[TOP_P] != 0 or way[FLAGS] & CUTS != 0
    return real(way, TEMPERATURE) > 0 and some


@njit(nogil=True, cache=True)
def score_of(x, n, way, tally, bias, mask):
    """What column n of a row is chosen by: its logit x changed as the way [16] says.

    tally and bias [n], mask [n / 32] are its sequence's. Source: repetition penalty, Keskar et al.,
    "CTRL", 2019; frequency and presence penalty and bias, OpenAI's API reference.
    """
    flags, times = way[FLAGS], tally[n] & (PROMPT - 1)
    if flags & REPEATS and (times > 0 or tally[n] & PROMPT):
        penalty = real(way, REPETITION)
        x = x / penalty if x > 0 else x * penalty
    if flags & COUNTS and times > 0:
        x -= np.float32(times) * real(way, FREQUENCY) + real(way, PRESENCE)
    if flags & BIASED:
        x += bias[n]
    if flags & EARLY and tally[n] & END:
        x = np.float32(-np.inf)
    if flags & MASKED and not (mask[n // 32] >> (n % 32)) & 1:
        x = np.float32(-np.inf)
    return x / real(way, TEMPERATURE) if real(way, TEMPERATURE) > 0 else x


@njit(nogil=True, cache=True)
def weigh(values, peaks, sums):
    """Each group's largest of values [n], and the sum of e^(value - largest), to peaks and sums
    [groups]: slices of 16 columns i and i + 4, then i + 2, then i + 1; then lanes in halves."""
    tree = np.empty(GROUP, np.float32)
    for group in range(len(peaks)):
        part = values[group * GROUP : (group + 1) * GROUP]
        peak = part.max() + np.float32(0)
        peaks[group], sums[group] = peak, 0
        if peak == -np.inf:
            continue
        tree[:] = exp(LEAST)
        for n in range(len(part)):
            tree[n] = exp(part[n] - peak)
        half = GROUP // 2
        while half > 0:
            for n in range(half):
                tree[n] += tree[n + half]
            half //= 2
        sums[group] = tree[0]


@njit(nogil=True, cache=True)
def sample(x, ways, places, mask, bias, tally, scores, best, at, peaks, sums):
    """best[t, p], at[t, p]: the largest score + noise of block p, and its first column.

    x [rows, n]; ways [rows, 16]; places [rows, 2] (sequence, position); mask, bias, tally
    [sequences, ..]. best and at [rows, blocks]: NaN and -1 where a logit of the block is not
    finite. Of rows that are edited or cut scores [rows, padded n], of those that are cut the first
    half of peaks and sums [rows, 2, groups]; of those that are told of log probabilities the second
    half, of x. Source: the Gumbel-max trick, as in Maddison, Tarlow and Minka 2014.
    """
    rows, n = x.shape
    row = np.empty(scores.shape[1], np.float32)
    for t in range(rows):
        way, sequence, cut = ways[t], places[t, 0], is_cut(ways[t])
        row[n:] = -np.inf
        for c in range(n):
            row[c] = score_of(x[t, c], c, way, tally[sequence], bias[sequence], mask[sequence])
        if cut or way[FLAGS] & EDITS:
            scores[t] = row
        if cut:
            weigh(row, peaks[t, 0], sums[t, 0])
        if way[TOLD]:
            weigh(x[t], peaks[t, 1], sums[t, 1])
        choose(x[t], row, way, np.uint64(places[t, 1]), best[t], at[t])


@njit(nogil=True, cache=True)
def choose(x, row, way, position, best, at):
    """The best and its column of each block of a row's scores, to best and at [blocks]; x [n] are
    its logits, row [n] its scores, way [16]."""
    words = way.view(np.uint32)
    k0, k1 = np.uint64(words[LOW_WORD]), np.uint64(words[HIGH_WORD])
    choice, four = np.uint64(words[CHOICE]), np.empty(4, np.uint64)
    drawn = real(way, TEMPERATURE) > 0
    for block in range(len(best)):
        first, end = block * COLUMNS, min((block + 1) * COLUMNS, len(x))
        value, index = np.float32(-np.inf), end
        for n in range(first, end):
            score = row[n]
            if drawn and n % 4 == 0:
                four[0], four[1], four[2], four[3] = philox(
                    np.uint64(n // 4), position, choice, ZERO, k0, k1
                )
            if not np.isfinite(x[n]) or not score < np.inf:
                value, index = np.float32(np.nan), -1
                break
            if drawn:
                score += gumbel(four[n % 4])
            if score > value or index == end:
                value, index = score, n
        best[block], at[block] = value, index


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
