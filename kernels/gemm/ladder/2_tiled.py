"""Rung 2: tiles of 16 weight rows by 16 columns.

Sixteen weight rows stay in the cache while every token uses them, and the sixteen columns of a
slice are one vector: column k is added to lane k % 16. The compiler may not do that to rung 1, as
adding floats in another order changes the result. Here the order is written down, so it is the
program's, not the compiler's.

    python kernels/gemm/ladder/2_tiled.py
"""

import numpy as np
from numba import njit, types
from numba.extending import overload

LANES = 16  # columns
TILE = 16  # weight rows


def widen(value):
    """A stored weight as float32: bfloat16 (uint16) is the upper half of a float32."""


@overload(widen)
def _widen(value):
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@njit(nogil=True)
def multiply(w, x, acc):
    """Adds the products of a weight row w [k] and a token's row x [k] to acc [16 lanes]."""
    for k in range(0, len(w), LANES):
        for lane in range(LANES):
            acc[lane] += widen(w[k + lane]) * x[k + lane]


@njit(nogil=True)
def gemm(x, w, y, residual=None):
    """y = x w^T (+ residual); x [tokens, k], w [n, k], y and residual [tokens, n]."""
    acc = np.empty(LANES, np.float32)
    for n0 in range(0, len(w), TILE):
        for t in range(len(x)):
            for n in range(n0, min(n0 + TILE, len(w))):
                acc[:] = 0
                multiply(w[n], x[t], acc)
                total = np.float32(0)
                for lane in range(LANES):
                    total += acc[lane]
                y[t, n] = total if residual is None else total + residual[t, n]


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
