"""Adds a token's weighted experts to its residual row on a CPU. An ordinary Numba kernel.

python kernels/moe_combine/standalone.py
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic


@intrinsic
def fma(typingctx, x, y, z):
    """x * y + z, rounded once."""
    return types.float32(types.float32, types.float32, types.float32), (
        lambda context, builder, sig, args: builder.fma(*args)
    )


@njit(nogil=True, cache=True)
def moe_combine(weights, y, x):
    """x += sum over c of weights[:, c] y[:, c]; weights [tokens, top], y [tokens, top, n]."""
    total = np.empty(x.shape[1], np.float32)
    for t in range(len(x)):
        total[:] = 0
        for c in range(weights.shape[1]):  # best first
            for i in range(len(total)):
                total[i] = fma(weights[t, c], y[t, c, i], total[i])
        for i in range(len(total)):
            x[t, i] += total[i]


if __name__ == "__main__":
    import sys

    from mkport.testing import run_rung

    sys.exit(not run_rung(__file__))
