"""A router's choice on a CPU: each token's k best experts and their weights, and, if they are asked
for, the (token, choice) pairs by expert. Ordinary Numba.

python kernels/topk/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

LANES = 16

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
def softmax_into(z, scores):
    """scores [experts] = e^(z - max z) of z [experts]; returns their sum.

    Score e is added in lane e % 16, and lanes are joined in halves.
    """
    lanes = np.zeros(LANES, np.float32)
    highest = z.max()
    for e in range(len(z)):
        scores[e] = exp(z[e] - highest)
        lanes[e % LANES] += scores[e]
    half = LANES // 2
    while half:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@njit(nogil=True, cache=True)
def group(ids, pairs, slots):
    """Sorts the choices of ids [tokens, k] by expert, those of one expert by token.

    pairs [tokens * k] receives token * k + choice; slots [distinct experts + 1 or more, 2] each
    expert with the place of its first pair, then (-1, number of pairs). An id of -1 is no choice.
    """
    flat = ids.ravel()
    slots[:, 0] = -1
    slot, place, last = -1, 0, -1
    for p in np.argsort(flat, kind="mergesort"):  # a stable sort
        if flat[p] < 0:
            continue
        if flat[p] != last:
            slot, last = slot + 1, flat[p]
            slots[slot, 0], slots[slot, 1] = last, place
        pairs[place] = p
        place += 1
    slots[slot + 1 :, 1] = place


@njit(nogil=True, cache=True)
def topk(z, ids, weights, softmax, renormalise, scale, pairs=None, slots=None):
    """The k best of z [tokens, experts]: ids and weights [tokens, k], best first.

    A lower index wins a tie. A row with a logit that is not finite gets ids -1, weights NaN. With
    pairs [tokens * k] and slots [slots + 1, 2], the choices by expert as `group` gives them.
    """
    experts, k = z.shape[1], ids.shape[1]
    scores = np.empty(experts, np.float32)
    one = np.float32(1)
    for t in range(len(z)):
        if not np.isfinite(z[t]).all():
            ids[t] = -1
            weights[t] = np.nan
            continue
        ids[t] = np.argsort(-z[t], kind="mergesort")[:k]  # a stable sort
        total = one
        if softmax:
            total = softmax_into(z[t], scores)
        else:
            for e in range(experts):
                scores[e] = one / (one + exp(-z[t, e]))
        chosen = np.float32(0)
        for c in range(k):
            weights[t, c] = scores[ids[t, c]] / total
            chosen += weights[t, c]
        for c in range(k):
            weight = weights[t, c] / chosen if renormalise else weights[t, c]
            weights[t, c] = weight * scale
    if pairs is not None:
        group(ids, pairs, slots)


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
