"""Rotary position embedding on a CPU, of normed heads where there is a norm, to a matrix or into a
paged cache. An ordinary Numba kernel.

python kernels/rope/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

LANES, CHAINS = 16, 4


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
def join(acc):
    """The sum of acc [4 chains, 16 lanes]: chains (0 + 1) + (2 + 3), then lanes in halves."""
    lanes = acc[0]
    for lane in range(LANES):
        lanes[lane] = (acc[0, lane] + acc[1, lane]) + (acc[2, lane] + acc[3, lane])
    half = LANES // 2
    while half:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@njit(nogil=True, cache=True)
def norm(head, w, eps):
    """Divides a head [head_dim] by its root mean square, and multiplies by w [head_dim].

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    acc = np.zeros((CHAINS, LANES), np.float32)
    for i0 in range(0, len(head), LANES):
        chain = acc[i0 // LANES % CHAINS]
        for lane in range(LANES):
            chain[lane] = fma(head[i0 + lane], head[i0 + lane], chain[lane])
    mean = join(acc) / np.float32(len(head))
    r = np.float32(1) / np.sqrt(mean + np.float32(eps))
    for i in range(len(head)):
        head[i] = (head[i] * r) * w[i]


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
def rope(
    x, rows, table=None, half_split=True, y=None, pages=None, page_table=None, w=None, eps=0.0
):
    """y = rope(x), or the same into the cache, as float32 or bfloat16 (uint16).

    x and y [tokens, heads, head_dim], y may be x; rows [tokens, 2] (sequence, position); table
    [positions, head_dim], None: no rotation; pages [pages, heads, page, head_dim];
    page_table [sequences, pages]; w [head_dim] and eps of the heads' norm, None: none.
    """
    head = np.empty(x.shape[2], np.float32)
    for t in range(len(x)):
        for h in range(x.shape[1]):
            head[:] = x[t, h]
            if w is not None:
                norm(head, w, eps)
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
