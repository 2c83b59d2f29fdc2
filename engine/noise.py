"""The noise of sampling, defined once for every machine: a counter-based generator, so that a token
depends on (seed, choice, position) and its own logits, and on nothing that runs beside it.

Words. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) with
    key     = (low 32 bits of seed, high 32 bits of seed)      seed: int64 in two's complement
    counter = (index // 4, position, choice, 0)
gives four words of 32 bits; vocabulary entry `index` takes word `index % 4`. `position` is that of
the row whose logits are sampled, counted from 0: the place of the last token already known.

Gumbel. A word w becomes, in float32,
    v = min((float32(w) + 0.5) * 2**-32, 1 - 2**-24)           in (0, 1), fine near 0
    g = -log(-log1p(-v))                                       from about -2.8 to 22.9
Here the logarithms are taken in float64 and g is rounded once; a machine that takes them in float32
is within a few units in the last place, so it may choose otherwise only where two scores tie.

Choice. Of the scores (logit / temperature) + g, all in float32, the greatest wins, and the lowest
index among equals: a draw from softmax(logits / temperature). An entry at -inf never wins. Below a
temperature of COLD there is no noise and the greatest logit wins. What happens to the logits before
(penalties, masks, top_p) is in `sampling`."""

import math

import numpy as np
from numba import njit

M0, M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # the multipliers
W0, W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)  # what each round adds to the key
ROUNDS = 10
COLD = 1e-5  # below it a temperature counts as 0
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
BELOW_ONE = np.float32(1 - 2**-24)


def key_of(seed: int) -> tuple[int, int]:
    """The two words of a generator's key, low and high 32 bits of an int64 seed."""
    return seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF


@njit(nogil=True, cache=True)
def philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Philox4x32-10 of counter c0..c3 and key k0, k1, words below 2**32 held in uint64: four such
    words. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011."""
    for _ in range(ROUNDS):
        p0, p1 = c0 * M0, c2 * M1
        c0, c2 = (p1 >> HALF) ^ c1 ^ k0, (p0 >> HALF) ^ c3 ^ k1
        c1, c3 = p1 & LOW, p0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return c0, c1, c2, c3


@njit(nogil=True, cache=True)
def gumbel_of(word):  # type: ignore[no-untyped-def]
    """The Gumbel noise of one word below 2**32: float32, from about -2.8 to 22.9.

    Source: the inverse of the Gumbel distribution's function, e^(-e^(-g)) = v.
    """
    scaled = (np.float32(word) + np.float32(0.5)) * np.float32(2.0**-32)
    v = min(scaled, BELOW_ONE)
    return np.float32(-math.log(-math.log1p(-np.float64(v))))


@njit(nogil=True, cache=True)
def _gumbel(indices, k0, k1, position, choice, out):  # type: ignore[no-untyped-def]
    for i in range(indices.size):
        index = np.uint64(indices[i])
        four = philox(index >> np.uint64(2), position, choice, np.uint64(0), k0, k1)
        out[i] = gumbel_of(four[index & np.uint64(3)])


SHIFT = np.uint64(20)  # a word's bucket is its upper 12 bits
# no word of a bucket gives more noise than its smallest one
CEILING = np.array([gumbel_of(np.uint64(bucket << 20)) for bucket in range(1 << 12)], np.float32)


@njit(nogil=True, cache=True)
def _race(scores, k0, k1, position, choice):  # type: ignore[no-untyped-def]
    best, winner = np.float32(-np.inf), -1
    for block in range((scores.size + 3) // 4):
        four = philox(np.uint64(block), position, choice, np.uint64(0), k0, k1)
        for lane in range(min(4, scores.size - 4 * block)):
            score, word = scores[4 * block + lane], four[lane]
            if score + CEILING[word >> SHIFT] <= best:  # most entries need no logarithm
                continue
            score += gumbel_of(word)
            if score > best:
                best, winner = score, 4 * block + lane
    return winner


def gumbel(indices: np.ndarray, seed: int, choice: int, position: int) -> np.ndarray:
    """The noise of the vocabulary entries `indices`, integers [n]: float32 [n]."""
    out = np.empty(indices.shape, np.float32)
    _gumbel(indices, *_arguments(seed, choice, position), out)
    return out


def race(scores: np.ndarray, seed: int, choice: int, position: int) -> int:
    """The winner among float32 `scores` [vocab], as if `gumbel` were added to each; -1 if all lost.

    Entries at -inf or NaN never win. It is a draw from softmax(scores). Source: the Gumbel-max
    trick, Gumbel 1954; as used by Maddison, Tarlow and Minka, "A* Sampling", 2014.
    """
    return int(_race(scores, *_arguments(seed, choice, position)))


def _arguments(seed: int, choice: int, position: int) -> tuple[np.uint64, ...]:
    k0, k1 = key_of(seed)
    return np.uint64(k0), np.uint64(k1), np.uint64(position), np.uint64(choice)
