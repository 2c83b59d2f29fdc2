"""Second half of a mixture of experts on a CPU: y = act Wd^T. An ordinary Numba kernel.

python kernels/moe_down/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

LANES = 16
SUMS = 4 * LANES  # four chains, each of 16 lanes
TILE = 16  # weight rows


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
def moe_down(act, w, slots, pairs, y):
    """y[pair] = act w[expert]^T; act [pairs, k] by expert, w [experts, n, k], y [pairs, n].

    slots [s + 1, 2] holds each expert and the place of its first pair, pairs the rows of y.
    """
    acc = np.empty(SUMS, np.float32)
    for s in range(len(slots) - 1):
        expert, first, end = slots[s, 0], slots[s, 1], slots[s + 1, 1]
        for n0 in range(0, w.shape[1], TILE):  # stays in cache for every pair of the expert
            for p in range(first, end):
                for n in range(n0, min(n0 + TILE, w.shape[1])):
                    acc[:] = 0
                    multiply(w[expert, n], act[p], acc)
                    y[pairs[p], n] = join(acc)


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
