"""Paged attention of long sequences on a CPU: one split of 512 keys at a time, for grouped heads.

Rung 3: keys in blocks of 16. What changes: a step is a block, not a key. A block's scores are found
together and the maximum moves once a block; its keys and values stay in the cache for all query
heads that share them. For that, sums over columns become sums over 64 lanes, and exponentials a
polynomial, so that the compiler can use vectors throughout. A block costs the same however few of
its keys are seen: over a handful of keys, rung 2 is as fast.

    python kernels/attention/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

SPLIT, BLOCK, LANES, CHAINS = 512, 16, 16, 4

# exp: 2^n times a polynomial in r = x - n ln 2 (coefficients of Cephes' expf)
LOG2E = np.float32(1.44269504088896341)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
SHIFT = np.float32(1.5 * 2**23)  # a float32 above it has no fraction
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
def join(lanes):
    """Adds 16 rows into the first: halves first. lanes [16 * columns], a row after another."""
    half = len(lanes) // 2
    for _ in range(4):
        for i in range(half):
            lanes[i] += lanes[half + i]
        half //= 2


@njit(nogil=True, cache=True)
def find_scores(query, keys, products, lanes):
    """lanes[:16] = a block's products with query [head_dim]; keys [16, head_dim], lanes [16 * 16].

    Column d is added to products [64] at d % 64: four chains of 16 lanes, joined at the end.
    """
    a, b, c, d = products[:16], products[16:32], products[32:48], products[48:]
    for j in range(BLOCK):
        products[:] = 0
        for start in range(0, len(query), CHAINS * LANES):
            qs, ks = query[start : start + CHAINS * LANES], keys[j, start : start + CHAINS * LANES]
            for i in range(len(qs)):
                products[i] = fma(widen(ks[i]), qs[i], products[i])
        for lane in range(LANES):
            lanes[lane * BLOCK + j] = (a[lane] + b[lane]) + (c[lane] + d[lane])
    join(lanes)


@njit(nogil=True, cache=True)
def add_block(query, keys, values, low, high, scale, out, products, lanes, weights):
    """Adds a block's keys from low to high to out [head_dim + 2 or more]: sums, m, l.

    query [head_dim]; keys and values [16, head_dim], float32 or bfloat16 as uint16; products [64],
    lanes [16 * 16] and weights [16] are scratch.
    """
    dim = len(query)
    find_scores(query, keys, products, lanes)
    before, m = out[dim], out[dim]
    for j in range(low, high):
        m = max(m, lanes[j] * scale)
    for j in range(BLOCK):
        weights[j] = exp(lanes[j] * scale - m)
    weights[:low] = 0
    weights[high:] = 0
    rescale, sums = exp(before - m), out[:dim]
    for d in range(dim):
        sums[d] *= rescale
    for j in range(low, high):
        value, weight = values[j], weights[j]
        for d in range(dim):
            sums[d] = fma(widen(value[d]), weight, sums[d])
    join(weights)
    out[dim], out[dim + 1] = m, fma(out[dim + 1], rescale, weights[0])


@njit(nogil=True, cache=True)
def attention(q, k_pages, v_pages, page_table, rows, window, scale, partial):
    """partial[t, s % splits, h] = (sum_j e^(s_j - m) v_j, m, sum_j e^(s_j - m)): s's seen keys.

    q [tokens, heads, head_dim]; k_pages and v_pages [pages, kv_heads, page, head_dim], float32 or
    bfloat16 as uint16; page_table [sequences, pages]; rows [tokens, 2] (sequence, position);
    partial [tokens, splits, heads, head_dim + 16]. `window` 0: a token sees all keys up to its own;
    else `splits` need be no more than a window touches.
    Source: Milakov and Gimelshein 2018 (online softmax); pages as in Kwon et al., "PagedAttention",
    2023; splits as in Flash-Decoding, Dao et al. 2023.
    """
    tokens, heads, dim = q.shape
    kv_heads, page = k_pages.shape[1:3]
    splits = partial.shape[1]
    group = heads // kv_heads
    products, lanes = np.empty(CHAINS * LANES, np.float32), np.empty(LANES * BLOCK, np.float32)
    weights = np.empty(BLOCK, np.float32)
    for t in range(tokens):
        sequence, position = rows[t]
        oldest = max(position - window + 1, 0) if window > 0 else 0
        for s in range(oldest // SPLIT, position // SPLIT + 1):  # splits with a seen key
            first, end = max(oldest, s * SPLIT), min(position + 1, (s + 1) * SPLIT)
            sums = partial[t, s % splits]
            sums[:, :dim] = 0
            sums[:, dim] = UNSEEN
            sums[:, dim + 1] = 0
            for block in range(first - first % BLOCK, end, BLOCK):
                low, high = max(first - block, 0), min(end - block, BLOCK)
                physical, slot = page_table[sequence, block // page], block % page
                for h in range(heads):
                    keys = k_pages[physical, h // group, slot : slot + BLOCK]
                    values = v_pages[physical, h // group, slot : slot + BLOCK]
                    out = sums[h]
                    add_block(
                        q[t, h], keys, values, low, high, scale, out, products, lanes, weights
                    )


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
