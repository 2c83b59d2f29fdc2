"""Index of each row's largest value on a CPU. An ordinary Numba kernel.

python kernels/argmax/standalone.py
"""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def argmax(x, y):
    """y[t] = the lowest index of the largest x[t, n], or -1 where a value is not finite."""
    for t in range(len(x)):
        best = 0
        for n in range(x.shape[1]):
            if not np.isfinite(x[t, n]):
                best = -1
                break
            if x[t, n] > x[t, best]:
                best = n
        y[t] = best


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
