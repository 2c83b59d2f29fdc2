"""What the ops that choose tokens share: a row's way to choose, word by word; noise; weights; the
order of values. Every step is rounded to float32 or is whole numbers, so that a draw is the same on
every machine.
"""

import numpy as np

from mkport.machines.cpu.vector import (
    EXP_LN2_HIGH,
    EXP_LN2_LOW,
    EXP_LOG2E,
    EXP_POLYNOMIAL,
    body,
    fma_f32,
    get_f32,
    get_i32,
)

# A row's words. Temperature 0, and all others 0: the largest logit.
DRAW_TEMPERATURE = 0  # float32 bits
DRAW_LOW, DRAW_HIGH, DRAW_CHOICE = 1, 2, 3  # a seed's words; which of a request's choices
DRAW_FLAGS = 4
DRAW_TOP_K = 5  # so many stay; 0: all
DRAW_TOP_P = 6  # a share as a fraction of 2^32 without sign; 0: all
DRAW_MIN_P = 7  # float32 bits of its logarithm
DRAW_REPETITION, DRAW_FREQUENCY, DRAW_PRESENCE = 8, 9, 10  # float32 bits of the penalties
DRAW_TOLD = 11  # 1 + rivals whose log probabilities are wanted; 0: none, nor the token's own
DRAW_GIVEN = 12  # 1 + the token that stands in for the chosen one; 0: none
DRAW_WORDS = 16
# flags: what changes the logits; the last one goes with DRAW_MIN_P
DRAW_REPEATS, DRAW_COUNTS, DRAW_BIASED, DRAW_EARLY, DRAW_MASKED, DRAW_CUTS = 1, 2, 4, 8, 16, 32
DRAW_EDITS = 31
# a token's tally: its times in the output, and
DRAW_PROMPT, DRAW_END = 1 << 28, 1 << 29  # whether it is in the prompt, and may end the output

DRAW_ONE = 2.0**40  # the weight of the likeliest
DRAW_COLUMNS = 128  # of a group, whose largest value and weight are kept


@body
def draw_cut(way, at):
    """Whether the row's way, from word `at` on, leaves tokens out before it draws."""
    some = get_i32(way, at + DRAW_TOP_K) != 0 or get_i32(way, at + DRAW_TOP_P) != 0
    some = some or (get_i32(way, at + DRAW_FLAGS) & DRAW_CUTS) != 0
    return get_f32(way, at + DRAW_TEMPERATURE) > 0 and some


@body
def draw_words(way, at, block, position):
    """Philox4x32-10 of columns 4 block to 4 block + 3: four words, each in the lower half of a
    uint64.

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1 = np.uint64(block), np.uint64(np.uint32(position))
    c2, c3 = np.uint64(np.uint32(get_i32(way, at + DRAW_CHOICE))), np.uint64(0)
    k0 = np.uint64(np.uint32(get_i32(way, at + DRAW_LOW)))
    k1 = np.uint64(np.uint32(get_i32(way, at + DRAW_HIGH)))
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (p1 >> half) ^ c1 ^ k0, (p0 >> half) ^ c3 ^ k1
        c1, c3 = p1 & mask, p0 & mask
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return c0, c1, c2, c3


@body
def draw_noise(word):
    """-log(-log(1 - v)) of a word as a number v between 0 and 1; fine where v is small."""
    v = (np.float32(word) + np.float32(0.5)) * np.float32(2.0**-32)
    v = min(v, np.float32(1 - 2**-24))
    if v < np.float32(0.25):
        return -draw_log(-draw_log_near(-v, np.float32(0)))
    return -draw_log(-draw_log(np.float32(1) - v))


@body
def draw_log(x):
    """log x of a normal positive float32: x = 2^n (1 + f), 1 + f from 1 / sqrt 2 to sqrt 2."""
    bits = np.float32(x).view(np.int32)
    n = np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23)
    m = np.int32(bits - np.int32(n << np.int32(23))).view(np.float32)
    return draw_log_near(m - np.float32(1), np.float32(n))


@body
def draw_log_near(f, n):
    """log(1 + f) + n ln 2, each step rounded to float32. Source: logf of the Cephes library."""
    z = f * f
    p = np.float32(7.0376836292e-2) * f + np.float32(-1.1514610310e-1)
    p = p * f + np.float32(1.1676998740e-1)
    p = p * f + np.float32(-1.2420140846e-1)
    p = p * f + np.float32(1.4249322787e-1)
    p = p * f + np.float32(-1.6668057665e-1)
    p = p * f + np.float32(2.0000714765e-1)
    p = p * f + np.float32(-2.4999993993e-1)
    p = p * f + np.float32(3.3333331174e-1)
    y = p * f * z + np.float32(-2.12194440e-4) * n
    return f + (y - np.float32(0.5) * z) + np.float32(0.693359375) * n


@body
def draw_exp(x):
    """e**x of a float32 that is not above 0, with the bits of the vectors' `exp`. Source: expf of
    the Cephes library."""
    x = max(x, np.float32(-87))
    magic = np.float32(12582912)  # added and taken off again, it rounds to a whole number
    n = (x * np.float32(EXP_LOG2E) + magic) - magic
    r = fma_f32(n, np.float32(-EXP_LN2_HIGH), x)
    r = fma_f32(n, np.float32(-EXP_LN2_LOW), r)
    p = np.float32(EXP_POLYNOMIAL[0])
    for coefficient in EXP_POLYNOMIAL[1:]:
        p = fma_f32(p, r, np.float32(coefficient))
    p = fma_f32(r * r, p, r) + np.float32(1)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return p * power


@body
def draw_weight(value, largest):
    """e**(value - largest) as a whole number of 2^-40: sums of them are the same in any order."""
    return np.int64(draw_exp(value - largest) * np.float32(DRAW_ONE))


@body
def draw_place(value, index):
    """A number that is larger for the larger of two values, and for the lower index of equal ones:
    uint64, the value's order in the upper half. Of a value above -infinity it is above DRAW_NONE.
    """
    bits = np.int64(np.float32(value + np.float32(0)).view(np.int32))  # -0 becomes 0
    order = bits if bits >= 0 else np.int64(-0x80000000) - bits - np.int64(1)
    upper = np.uint64(order + np.int64(0x80000000)) << np.uint64(32)
    return upper | np.uint64(np.int64(0xFFFFFFFF) - np.int64(index))


DRAW_NONE = np.uint64(0x007FFFFF_FFFFFFFF)  # the place of -infinity at index 0
