"""The best of each row's parts on a CPU. An ordinary Numba kernel.

python kernels/sample_join/standalone.py
"""

from numba import njit


@njit(nogil=True, cache=True)
def sample_join(best, at, y):
    """y[t] = at[t, p] of the first largest best[t, p], or -1 where an at[t, p] is below 0."""
    for t in range(len(best)):
        first = 0
        for p in range(best.shape[1]):
            if at[t, p] < 0:
                first = p
                break
            if best[t, p] > best[t, first]:
                first = p
        y[t] = at[t, first]


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
