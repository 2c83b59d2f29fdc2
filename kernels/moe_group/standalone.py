"""Groups (token, choice) pairs by expert on a CPU. An ordinary Numba kernel.

python kernels/moe_group/standalone.py
"""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def moe_group(ids, pairs, slots, most=0):
    """Sorts the choices of ids [tokens, k] by expert, those of one expert by token.

    pairs [tokens * k] receives token * k + choice; slots [distinct experts + 1 or more, 2] each
    expert with the place of its first pair, then (-1, number of pairs). An id of -1 is no choice.
    With `most`, an expert has a slot for each so many pairs.
    """
    flat = ids.ravel()
    slots[:, 0] = -1
    slot, place, last, first = -1, 0, -1, 0
    for p in np.argsort(flat, kind="mergesort"):  # a stable sort
        if flat[p] < 0:
            continue
        if flat[p] != last or (most > 0 and place - first == most):
            slot, last, first = slot + 1, flat[p], place
            slots[slot, 0], slots[slot, 1] = last, first
        pairs[place] = p
        place += 1
    slots[slot + 1 :, 1] = place


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
