"""The same in Numba, and fast.

Write the body of a tiled product as plain loops that Numba compiles: for each of 16 weight rows
and each token, add up the products. Keep a weight row in use for all tokens before you go on to
the next one. Your time is compared with that of a plain triple loop which goes through the whole
weight again for each token.
"""

import numpy as np
from numba import njit

TILE = 16


@njit(nogil=True)
def product(x, w, y):
    """y = x w^T; x [tokens, k], w [n, k], y [tokens, n], all float32."""
    for n0 in range(0, len(w), TILE):
        # blank: loops over the tile's rows, the tokens, and k in sixteen lanes
        for n in range(n0, min(n0 + TILE, len(w))):
            for t in range(len(x)):
                lanes = np.zeros(16, np.float32)
                for k in range(0, x.shape[1], 16):
                    for i in range(16):
                        lanes[i] += x[t, k + i] * w[n, k + i]
                y[t, n] = lanes.sum()
        # end


# === check
HINT = "Sixteen running sums that do not depend on each other let the compiler use vectors."
READ = "Rung 2: tiles"
WRONG = ("range(0, x.shape[1], 16)", "range(16, x.shape[1], 16)")


@njit(nogil=True)
def _plain(x, w, y):
    for t in range(len(x)):
        for n in range(len(w)):
            total = np.float32(0)
            for k in range(x.shape[1]):
                total += x[t, k] * w[n, k]
            y[t, n] = total


def check(yours, report):
    """A product of 4 tokens; then the clock."""
    import time

    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 256), np.float32)
    w = rng.standard_normal((1000, 256), np.float32)
    y = np.full((4, 1000), np.nan, np.float32)
    yours.product(x, w, y)
    truth = x.astype(np.float64) @ w.T.astype(np.float64)
    report.array("x w^T", y, truth, _slowly(x, w), (4, TILE))

    def best(kernel):
        times = []
        for _ in range(5):
            started = time.perf_counter()
            kernel(x, w, y)
            times.append(time.perf_counter() - started)
        return min(times) * 1e6

    report.score("time of a product", best(yours.product), "us", best(_plain))


def _slowly(x, w):
    y = np.empty((len(x), len(w)), np.float32)
    _plain(x, w, y)
    return y
