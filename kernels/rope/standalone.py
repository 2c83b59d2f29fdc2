"""Rotary position embedding on a CPU, to a matrix or into a paged cache. An ordinary Numba kernel.

python kernels/rope/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload


@intrinsic
def fma(typingctx, x, y, z):
    """x * y + z, rounded once."""
    return types.float32(types.float32, types.float32, types.float32), (
        lambda context, builder, sig, args: builder.fma(*args)
    )


def narrow(value, cache):
    """A float32 as the cache stores it: bfloat16 (uint16) is rounded to nearest even."""


@overload(narrow)
def _narrow(value, cache):
    if cache.dtype == types.uint16:
        return lambda value, cache: round_bf16(value)
    return lambda value, cache: value


@njit(nogil=True, cache=True)
def round_bf16(value):
    """The upper half of the float32 nearest to `value`; a NaN stays a NaN."""
    bits = np.float32(value).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = np.uint32(bits + even + np.uint32(0x7FFF))
    quiet = bits | np.uint32(0x400000)
    return np.uint16((rounded if value == value else quiet) >> np.uint32(16))


@njit(nogil=True, cache=True)
def rotate(head, angles, half_split):
    """Rotates a head [head_dim] in place; angles [head_dim] are cosines, then sines.

    Source: Su et al., "RoFormer", 2021.
    """
    half = len(head) // 2
    for i in range(half):
        i0, i1 = (i, i + half) if half_split else (2 * i, 2 * i + 1)
        p, q, c, s = head[i0], head[i1], angles[i], angles[half + i]
        head[i0] = fma(p, c, -(q * s))
        head[i1] = fma(q, c, p * s)


@njit(nogil=True, cache=True)
def keep(head, where, pages, page_table, h):
    """Stores head h, head [head_dim], in its slot of pages [pages, heads, page, head_dim].

    where [2] is (sequence, position), page_table [sequences, pages] names a sequence's pages.
    """
    size = pages.shape[2]
    page, slot = page_table[where[0], where[1] // size], where[1] % size
    for i in range(len(head)):
        pages[page, h, slot, i] = narrow(head[i], pages)


@njit(nogil=True, cache=True)
def rope(x, rows, table=None, half_split=True, y=None, pages=None, page_table=None):
    """y = rope(x), or the same into the cache, as float32 or bfloat16 (uint16).

    x and y [tokens, heads, head_dim], y may be x; rows [tokens, 2] (sequence, position); table
    [positions, head_dim], None: no rotation; pages [pages, heads, page, head_dim];
    page_table [sequences, pages].
    """
    head = np.empty(x.shape[2], np.float32)
    for t in range(len(x)):
        for h in range(x.shape[1]):
            head[:] = x[t, h]
            if table is not None:
                rotate(head, table[rows[t, 1]], half_split)
            if y is not None:
                y[t, h] = head
            if pages is not None:
                keep(head, rows[t], pages, page_table, h)


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
