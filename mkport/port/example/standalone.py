"""The op example on a CPU: an ordinary Numba kernel."""

from numba import njit


@njit(nogil=True, cache=True)
def example(x, y, factor):
    """y = factor * x; x and y [rows, n]."""
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            y[t, i] = factor * x[t, i]


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
