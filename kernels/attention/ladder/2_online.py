"""Rung 2: online softmax. What changes: one pass over the keys, not three, and no score is kept.

When a key raises the maximum m, what was summed so far is too large by e^(m' - m): it is scaled
down, and the sums go on as if m' had been the maximum from the start.

    python kernels/attention/ladder/2_online.py
"""

import numpy as np
from numba import njit, types
from numba.extending import overload

SPLIT = 512  # keys


def widen(value):
    """A cached number as float32: bfloat16 (uint16) is the upper half of a float32."""


@overload(widen)
def _widen(value):
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@njit(nogil=True)
def attention(q, k_pages, v_pages, page_table, rows, window, scale, partial):
    """partial[t, s % splits, h] = (sum_j e^(s_j - m) v_j, m, sum_j e^(s_j - m)): s's seen keys.

    q [tokens, heads, head_dim]; k_pages and v_pages [pages, kv_heads, page, head_dim]; page_table
    [sequences, pages]; rows [tokens, 2] (sequence, position); partial
    [tokens, splits, heads, head_dim + 16]. `window` 0: a token sees all keys up to its own;
    else `splits` need be no more than a window touches.
    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    tokens, heads, head_dim = q.shape
    kv_heads, page = k_pages.shape[1:3]
    splits = partial.shape[1]
    sums = np.empty(head_dim)
    for t in range(tokens):
        sequence, position = rows[t]
        oldest = max(position - window + 1, 0) if window > 0 else 0
        for s in range(oldest // SPLIT, position // SPLIT + 1):  # splits with a seen key
            first, end = max(oldest, s * SPLIT), min(position + 1, (s + 1) * SPLIT)
            for h in range(heads):
                out, kv_head = partial[t, s % splits, h], h * kv_heads // heads
                m, weight_sum = -np.inf, 0.0
                sums[:] = 0
                for j in range(first, end):
                    physical, slot = page_table[sequence, j // page], j % page
                    key, value = k_pages[physical, kv_head, slot], v_pages[physical, kv_head, slot]
                    score = 0.0
                    for d in range(head_dim):
                        score += np.float64(q[t, h, d]) * widen(key[d])
                    score *= scale
                    larger = max(m, score)
                    rescale, weight = np.exp(m - larger), np.exp(score - larger)
                    m, weight_sum = larger, weight_sum * rescale + weight
                    for d in range(head_dim):
                        sums[d] = sums[d] * rescale + weight * widen(value[d])
                out[:head_dim] = sums
                out[head_dim], out[head_dim + 1] = m, weight_sum


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
