"""Rung 2: the choices sorted by expert, so that tokens of one expert follow each other.

Nothing is searched, and an expert that nobody chose is not touched; but each token still reads its
expert's weights from end to end, and a large expert has left the nearest cache by then. Products
are those of rung 1.

    python kernels/moe_up/ladder/2_sorted.py
"""

import numpy as np
from numba import njit, types
from numba.extending import overload

SUMS = 64


def widen(value):
    """A stored weight as float32: bfloat16 (uint16) is the upper half of a float32."""


@overload(widen)
def _widen(value):
    if value == types.uint16:
        return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)
    return lambda value: value


@njit(nogil=True)
def dot(w, x, acc):
    """The product of w [k] and x [k], summed in 64 parts; acc [64] is scratch."""
    acc[:] = 0
    whole = len(w) // SUMS * SUMS
    for k in range(0, whole, SUMS):
        for i in range(SUMS):
            acc[i] += widen(w[k + i]) * x[k + i]
    total = np.float32(0)
    for i in range(SUMS):
        total += acc[i]
    for k in range(whole, len(w)):
        total += widen(w[k]) * x[k]
    return total


@njit(nogil=True)
def moe_up(x, w_gate, w_up, up_row, ids, act):
    """act[t, c] = silu(x w_gate[e]^T) * (x w_up[e]^T) for e = ids[t, c].

    x [tokens, k], w_gate and w_up [experts, n, k] (up from row up_row on), ids [tokens, top],
    act [tokens, top, n].
    """
    acc = np.empty(SUMS, np.float32)
    one = np.float32(1)
    top = ids.shape[1]
    flat = ids.ravel()
    for pair in np.argsort(flat, kind="mergesort"):
        expert, t, c = flat[pair], pair // top, pair % top
        if expert >= 0:
            for n in range(act.shape[2]):
                gate = dot(w_gate[expert, n], x[t], acc)
                up = dot(w_up[expert, up_row + n], x[t], acc)
                act[t, c, n] = gate / (one + np.exp(-gate)) * up


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
