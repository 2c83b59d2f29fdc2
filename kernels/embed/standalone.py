"""Embedding lookup on a CPU: y[t] = table[tokens[t]]. An ordinary Numba kernel.

python kernels/embed/standalone.py
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


@njit(nogil=True, cache=True)
def embed(tokens, table, y):
    """y[t] = table[tokens[t]]; tokens [tokens], table [vocabulary, k], y [tokens, k]."""
    for t in range(len(tokens)):
        row = table[tokens[t]]
        for i in range(len(row)):
            y[t, i] = widen(row[i])


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
