"""Rung 1: a loop over the experts, each looking through all choices for its own tokens.

It follows the formula and looks at every expert, chosen or not. Sums are plain loops.

    python kernels/moe_up/ladder/1_loop.py
"""

import numpy as np
from numba import njit


@njit(nogil=True)
def dot(w, x):
    """One sum; in double, as one long chain of float32 additions would lose digits."""
    total = 0.0
    for k in range(len(w)):  # each addition waits for the one before it
        total += np.float64(w[k]) * x[k]
    return total


@njit(nogil=True)
def moe_up(x, w_gate, w_up, up_row, ids, act):
    """act[t, c] = silu(x w_gate[e]^T) * (x w_up[e]^T) for e = ids[t, c].

    x [tokens, k], w_gate and w_up [experts, n, k] (up from row up_row on), ids [tokens, top],
    act [tokens, top, n].
    """
    for expert in range(len(w_gate)):
        for t in range(ids.shape[0]):
            for c in range(ids.shape[1]):
                if ids[t, c] == expert:
                    for n in range(act.shape[2]):
                        gate = dot(w_gate[expert, n], x[t])
                        up = dot(w_up[expert, up_row + n], x[t])
                        act[t, c, n] = gate / (1 + np.exp(-gate)) * up


if __name__ == "__main__":
    from mkport.testing import run_rung

    run_rung(__file__)
