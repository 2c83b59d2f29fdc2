"""What argmax must compute, in PyTorch, and the cases it is checked on."""

import numpy as np
import torch

from mkport.declare.case import Case

SHAPES = {
    "one row": {"rows": 1, "live": 1, "n": 5000},
    "3 of 4 rows, odd columns": {"rows": 4, "live": 3, "n": 1037},
    "ties": {"rows": 8, "live": 8, "n": 2100, "levels": 3},
    "one column": {"rows": 2, "live": 2, "n": 1},
    "not finite": {"rows": 6, "live": 6, "n": 700, "broken": True},
}


def oracle(t):
    """y [rows]: the first index of each live row's largest value, or -1."""
    x = t.x[: int(t.count[0])]
    return {"y": torch.where(torch.isfinite(x).all(dim=1), x.argmax(dim=1), -1)}


def make(rng, weights, cache, rows, live, n, levels=0, broken=False):
    """Random logits [rows, n]; `levels`: so few values that the largest occurs often.

    `broken` puts a value that is not finite into every row but the last.
    """
    x = rng.standard_normal((rows, n), np.float32)
    if levels:
        x = rng.integers(-levels, 0, (rows, n)).astype(np.float32)
    if broken:
        bad = np.array([np.nan, np.inf, -np.inf], np.float32)
        for row in range(rows - 1):
            x[row, rng.integers(0, n)] = bad[row % 3]
        x[0, :] = np.nan
        x[1, n - 1] = np.inf
    x[live:] = np.nan
    arrays = {
        "count": np.array([live], np.int32),
        "x": x,
        "y": np.full(rows, np.iinfo(np.int32).min, np.int32),
    }
    return Case(arrays, {"n": n}, ("y",))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    kernel(a.x[:rows], a.y[:rows])


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    if rows := int(a.count[0]):
        launch("argmax", rows, 256, 256 * 8, a.x, a.y, a.n)
