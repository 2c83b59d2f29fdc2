"""Rung 1: the definition. All scores of a split are kept, so the keys are passed over three times.

Rung 2 changes the passes (one, and no score is kept), rung 3 the step (16 keys, not one).

The keys of a sequence lie in pages: key j in slot j % page of the page that the table names. A
split of 512 keys leaves (sums, m, l), which another kernel joins with the other splits'.

    python kernels/attention/ladder/1_naive.py
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
    """
    tokens, heads, head_dim = q.shape
    kv_heads, page = k_pages.shape[1:3]
    splits = partial.shape[1]
    scores = np.empty(SPLIT)
    for t in range(tokens):
        sequence, position = rows[t]
        oldest = max(position - window + 1, 0) if window > 0 else 0
        for s in range(oldest // SPLIT, position // SPLIT + 1):  # splits with a seen key
            first, end = max(oldest, s * SPLIT), min(position + 1, (s + 1) * SPLIT)
            for h in range(heads):
                out, kv_head = partial[t, s % splits, h], h * kv_heads // heads
                for j in range(first, end):
                    key = k_pages[page_table[sequence, j // page], kv_head, j % page]
                    total = 0.0
                    for d in range(head_dim):
                        total += np.float64(q[t, h, d]) * widen(key[d])
                    scores[j - first] = scale * total
                m = scores[: end - first].max()
                weight_sum = 0.0
                for j in range(end - first):
                    scores[j] = np.exp(scores[j] - m)
                    weight_sum += scores[j]
                for d in range(head_dim):
                    total = 0.0
                    for j in range(first, end):
                        value = v_pages[page_table[sequence, j // page], kv_head, j % page]
                        total += scores[j - first] * widen(value[d])
                    out[d] = total
                out[head_dim], out[head_dim + 1] = m, weight_sum


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
