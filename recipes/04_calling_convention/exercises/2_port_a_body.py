"""Port a body.

Below is an ordinary kernel: it scales every row so that its mean square is one. Make a body of
it. A tile is one row. The body gets its arguments in `a`, and the number of its tile; rows from
`a.count[0]` on are not in use and must be left alone. Compute exactly what the ordinary kernel
computes, in the same order: the check compares bits.
"""

import numpy as np


def ordinary(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """y = x / sqrt(mean of x squared + 1e-5) * w, row by row; all float32, x and y [rows, k]."""
    for row in range(len(x)):
        mean = np.float32(np.sum(x[row] * x[row]) / np.float32(x.shape[1]))
        y[row] = x[row] / np.sqrt(mean + np.float32(1e-5)) * w


def body(a, tile: int) -> None:
    """The row `tile` of a.y, from a.x [rows, k] and a.w [k]; a.count is [1]."""
    # blank: leave idle rows alone, then the loop's body for one row
    if tile >= a.count[0]:
        return
    x = a.x[tile]
    mean = np.float32(np.sum(x * x) / np.float32(len(x)))
    a.y[tile] = x / np.sqrt(mean + np.float32(1e-5)) * a.w
    # end


# === check
HINT = "Return at once if tile >= a.count[0]; then what stands inside the loop, with row = tile."
READ = "Before and after"
WRONG = ("if tile >= a.count[0]", "if tile > a.count[0]")


def check(yours, report):
    """Five rows of eight in use; the others hold NaN and stay as they are."""
    from types import SimpleNamespace

    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 64), np.float32)
    x[5:] = np.nan
    w = rng.standard_normal(64, np.float32)
    y = np.full((8, 64), -7, np.float32)
    a = SimpleNamespace(count=np.array([5], np.int32), x=x, w=w, y=y)
    for tile in rng.permutation(8):
        yours.body(a, int(tile))
    wanted = np.full((8, 64), -7, np.float32)
    ordinary(x[:5], w, wanted[:5])
    report.array("y", y, wanted, tile=(1, 64))
    report.equal("the same bits", y.tobytes() == wanted.tobytes(), True)
