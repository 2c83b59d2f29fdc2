"""Rung 1: the definition, in plain loops. Every weight is read again for every token.

python kernels/gemm/ladder/1_naive.py
"""

import numpy as np
from numba import njit, types
from numba.extending import overload


def widen(value):
    """A stored weight as float32: bfloat16 (uint16) is the upper half of a float32."""


@overload(widen)
def _widen(value):
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@njit(nogil=True)
def gemm(x, w, y, residual=None):
    """y = x w^T (+ residual); x [tokens, k], w [n, k], y and residual [tokens, n]."""
    for t in range(len(x)):
        for n in range(len(w)):
            total = 0.0  # in double: one long chain of float32 sums would lose digits
            for k in range(x.shape[1]):  # each addition waits for the one before it
                total += np.float64(x[t, k]) * widen(w[n, k])
            y[t, n] = total if residual is None else total + residual[t, n]


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
