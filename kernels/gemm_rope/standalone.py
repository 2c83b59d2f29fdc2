"""A head projection on a CPU: y = rope(x W^T), or into a paged cache. An ordinary Numba kernel.

python kernels/gemm_rope/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

LANES = 16
SUMS = 4 * LANES  # four chains, each of 16 lanes


@intrinsic
def fma(typingctx, x, y, z):
    """x * y + z, rounded once."""
    return types.float32(types.float32, types.float32, types.float32), (
        lambda context, builder, sig, args: builder.fma(*args)
    )


def widen(value):
    """A stored weight as float32: bfloat16 (uint16) is the upper half of a float32."""


@overload(widen)
def _widen(value):
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


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
def multiply(w, x, acc):
    """Adds the products of weight row w [k] and token row x [k] to acc [4 chains * 16 lanes]."""
    whole = len(w) // SUMS * SUMS
    for k in range(0, whole, SUMS):
        for i in range(SUMS):
            acc[i] = fma(widen(w[k + i]), x[k + i], acc[i])
    for i in range(len(w) - whole):  # up to three slices are left
        acc[i] = fma(widen(w[whole + i]), x[whole + i], acc[i])


@njit(nogil=True, cache=True)
def join(acc):
    """The sum of acc [4 chains * 16 lanes]: chains (0 + 1) + (2 + 3), then lanes in halves."""
    for i in range(LANES):
        acc[i] = (acc[i] + acc[LANES + i]) + (acc[2 * LANES + i] + acc[3 * LANES + i])
    half = LANES // 2
    while half:
        for i in range(half):
            acc[i] += acc[i + half]
        half //= 2
    return acc[0]


@njit(nogil=True, cache=True)
def normed(x, w, eps):
    """x / sqrt(mean x^2 + eps) * w, row by row: x [tokens, k], w [k]; squares add up as products
    do. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019."""
    y = np.empty_like(x)
    acc = np.empty(SUMS, np.float32)
    for t in range(len(x)):
        acc[:] = 0
        for i in range(x.shape[1]):
            acc[i % SUMS] = fma(x[t, i], x[t, i], acc[i % SUMS])
        mean = join(acc) / np.float32(x.shape[1])
        r = np.float32(1) / np.sqrt(mean + np.float32(eps))
        for i in range(x.shape[1]):
            y[t, i] = (x[t, i] * r) * w[i]
    return y


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
def gemm_rope(
    x, w, rows, table=None, half_split=True, y=None, pages=None, page_table=None,
    norm_w=None, norm_eps=0.0,
):  # fmt: skip
    """y = rope(x W^T), or the same into the cache, as float32 or bfloat16 (uint16).

    x [tokens, k]; w [heads, head_dim, k]; rows [tokens, 2] (sequence, position); table
    [positions, head_dim], None: no rotation; y [tokens, heads, head_dim];
    pages [pages, heads, page, head_dim]; page_table [sequences, pages]. With norm_w
    [k], x's norm is multiplied in its place.
    """
    if norm_w is not None:
        x = normed(x, norm_w, norm_eps)
    acc = np.empty(SUMS, np.float32)
    head = np.empty(w.shape[1], np.float32)
    for h in range(len(w)):  # a head's weights stay in cache for every token
        for t in range(len(x)):
            for i in range(len(head)):
                acc[:] = 0
                multiply(w[h, i], x[t], acc)
                head[i] = join(acc)
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
