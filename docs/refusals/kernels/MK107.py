# --types float32[:],float32[:]
"""A fractional power: Numba's and the GPU's differ in the last bit."""

from numba import cuda


@cuda.jit
def root(x, y):
    """y = x to the power of one third."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i] ** 0.333
