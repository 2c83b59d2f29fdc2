"""What sample_join must compute, in PyTorch, and the cases it is checked on."""

import numpy as np
import torch

from mkport.declare.case import Case

SHAPES = {
    "one part": {"rows": 1, "live": 1, "parts": 1},
    "3 of 4 rows": {"rows": 4, "live": 3, "parts": 64},
    "more parts than threads": {"rows": 2, "live": 2, "parts": 300},
    "ties": {"rows": 8, "live": 8, "parts": 33, "levels": 2},
    "parts without a best": {"rows": 4, "live": 4, "parts": 40, "broken": True},
    "no row": {"rows": 1, "live": 0, "parts": 3},
}


def oracle(t):
    """y [rows]: the index of the first of each row's largest values, -1 where a part has none."""
    rows = int(t.count[0])
    best, at = t.best[:rows], t.at[:rows]
    none = (at < 0).any(dim=1)
    first = torch.nan_to_num(best, nan=-torch.inf).argmax(dim=1, keepdim=True)
    return {"y": torch.where(none, -1, at.gather(1, first)[:, 0])}


def make(rng, weights, cache, rows, live, parts, levels=0, broken=False):
    """Random values. `levels`: so few that the largest occurs often; `broken`: rows with a part
    that has no best value."""
    best = rng.standard_normal((rows, parts), np.float32)
    if levels:
        best = rng.integers(-levels, 0, (rows, parts)).astype(np.float32)
    at = (np.arange(parts) * 100 + rng.integers(0, 100, (rows, parts))).astype(np.int32)
    if broken:
        for row in range(1, rows):
            part = rng.integers(0, parts)
            best[row, part], at[row, part] = np.nan, -1
    best[live:] = np.nan
    arrays = {
        "count": np.array([live], np.int32),
        "best": best,
        "at": at,
        "y": np.full(rows, np.iinfo(np.int32).min, np.int32),
    }
    return Case(arrays, {"parts": parts}, ("y",))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    kernel(a.best[:rows], a.at[:rows], a.y[:rows])


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    if rows := int(a.count[0]):
        launch("sample_join", rows, 32, 0, a.best, a.at, a.y, a.parts)
