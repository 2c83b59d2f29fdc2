"""Row selection on a CPU: y[i] = x[index[i]]. An ordinary Numba kernel.

python kernels/select/standalone.py
"""

from numba import njit


@njit(nogil=True, cache=True)
def select(index, x, y):
    """y[i] = x[index[i]]; index [rows], x [tokens, k], y [rows, k]."""
    for i in range(len(index)):
        y[i] = x[index[i]]


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
