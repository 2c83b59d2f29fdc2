"""Rung 2: sixteen sums side by side. The compiler turns the lane loop into vectors.

It may not do that to rung 1: adding floats in another order changes the result. Here the order
is written down, so it is the program's, not the compiler's.

    python kernels/gemm/ladder/2_lanes.py
"""

import numpy as np
from numba import njit

LANES = 16


@njit(nogil=True)
def gemm(x, w, y, residual=None):
    """y = x w^T (+ residual); x [tokens, k], w [n, k], y and residual [tokens, n]."""
    acc = np.empty(LANES, np.float32)
    for t in range(len(x)):
        for n in range(len(w)):
            acc[:] = 0
            for k0 in range(0, x.shape[1], LANES):
                for lane in range(LANES):
                    acc[lane] += x[t, k0 + lane] * w[n, k0 + lane]
            total = np.float32(0)
            for lane in range(LANES):
                total += acc[lane]
            y[t, n] = total if residual is None else total + residual[t, n]


if __name__ == "__main__":
    from mkport.testing import run_rung

    run_rung(__file__)
