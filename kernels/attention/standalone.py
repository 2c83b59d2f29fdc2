"""Paged attention of long sequences on a CPU: one split of 256 keys at a time, for grouped heads.

Rung 3: keys in blocks of 16. A block's scores are found together and the maximum moves once a
block, not once a key; its keys and values stay in the cache for all query heads that share them.
Exponentials are a polynomial: 16 of them cost what one call of a library costs.

    python kernels/attention/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

SPLIT, BLOCK, LANES, CHAINS = 256, 16, 16, 4

# exp: 2^n times a polynomial in r = x - n ln 2 (coefficients of Cephes' expf)
LOG2E = np.float32(1.44269504088896341)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
LOWEST, HIGHEST, ONE = np.float32(-87), np.float32(88), np.float32(1)
UNSEEN = np.float32(-np.inf)


@intrinsic
def fma(typingctx, x, y, z):
    """x * y + z, rounded once."""
    return types.float32(types.float32, types.float32, types.float32), (
        lambda context, builder, sig, args: builder.fma(*args)
    )


def widen(value):
    """A cached number as float32: bfloat16 (uint16) is the upper half of a float32."""


@overload(widen)
def _widen(value):
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@njit(nogil=True, cache=True)
def exp(x):
    """e^x, within 2 ulp; below e^-87 it is e^-87."""
    x = LOWEST if x < LOWEST else x
    x = HIGHEST if x > HIGHEST else x
    n = np.rint(x * LOG2E)
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    p = fma(fma(fma(fma(fma(P0, r, P1), r, P2), r, P3), r, P4), r, P5)
    p = fma(r * r, p, r) + ONE
    power = np.int32(np.int32(n if n == n else 0) + np.int32(127))
    return p * np.int32(power << np.int32(23)).view(np.float32)


@njit(nogil=True, cache=True)
def join(lanes):
    """The sum of 16 lanes, halves joined first."""
    half = LANES // 2
    while half:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@njit(nogil=True, cache=True)
def dot(key, query, acc):
    """A key times a query: slice i of 16 to chain i % 4; acc [4 chains, 16 lanes] is scratch."""
    acc[:] = 0
    for d in range(0, len(key), LANES):
        chain, ks, qs = acc[d // LANES % CHAINS], key[d : d + LANES], query[d : d + LANES]
        for lane in range(LANES):
            chain[lane] = fma(widen(ks[lane]), qs[lane], chain[lane])
    lanes = acc[0]
    for lane in range(LANES):
        lanes[lane] = (acc[0, lane] + acc[1, lane]) + (acc[2, lane] + acc[3, lane])
    return join(lanes)


@njit(nogil=True, cache=True)
def step(query, keys, values, low, high, scale, out, acc, weights):
    """Adds keys low to high of a block to out (sums, m, l); keys, values [16, head_dim]."""
    dim = len(query)
    before, m = out[dim], out[dim]
    for j in range(low, high):
        weights[j] = dot(keys[j], query, acc) * scale
        m = max(m, weights[j])
    rescale = exp(before - m)
    for j in range(BLOCK):
        weights[j] = exp(weights[j] - m) if low <= j < high else np.float32(0)
    sums = out[:dim]
    for d in range(dim):
        sums[d] *= rescale
    for j in range(low, high):
        value, weight = values[j], weights[j]
        for d in range(dim):
            sums[d] = fma(widen(value[d]), weight, sums[d])
    out[dim] = m
    out[dim + 1] = fma(out[dim + 1], rescale, join(weights))


@njit(nogil=True, cache=True)
def attention(q, k_pages, v_pages, page_table, rows, window, scale, partial):
    """partial[t, s, h] = (sum_j e^(s_j - m) v_j, m, sum_j e^(s_j - m)) over split s's seen keys.

    q [tokens, heads, head_dim]; pages [pages, kv_heads, page, head_dim], float32 or bfloat16 as
    uint16; page_table [sequences, pages]; rows [tokens, 2] (sequence, position); partial
    [tokens, splits, heads, head_dim + 16]. `window` 0: a token sees all keys up to its own.
    """
    tokens, heads, dim = q.shape
    kv_heads, page = k_pages.shape[1:3]
    group = heads // kv_heads
    acc, weights = np.empty((CHAINS, LANES), np.float32), np.empty(BLOCK, np.float32)
    for t in range(tokens):
        sequence, position = rows[t]
        oldest = max(position - window + 1, 0) if window > 0 else 0
        for s in range(oldest // SPLIT, position // SPLIT + 1):  # splits with a seen key
            first, end = max(oldest, s * SPLIT), min(position + 1, (s + 1) * SPLIT)
            partial[t, s, :, :dim] = 0
            partial[t, s, :, dim] = UNSEEN
            partial[t, s, :, dim + 1] = 0
            for block in range(first - first % BLOCK, end, BLOCK):
                low, high = max(first - block, 0), min(end - block, BLOCK)
                physical, slot = page_table[sequence, block // page], block % page
                for h in range(heads):
                    keys = k_pages[physical, h // group, slot : slot + BLOCK]
                    values = v_pages[physical, h // group, slot : slot + BLOCK]
                    out = partial[t, s, h]
                    step(q[t, h], keys, values, low, high, scale, out, acc, weights)


if __name__ == "__main__":
    from mkport.testing import run_rung

    run_rung(__file__)
