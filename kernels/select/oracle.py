"""What select must compute, on PyTorch tensors, and the cases it is checked on."""

import numpy as np

from mkport.declare.case import Case

SHAPES = {
    "one row": {"tokens": 8, "rows": 1, "selected": 1, "k": 576},
    "3 of 4 rows": {"tokens": 8, "rows": 4, "selected": 3, "k": 80},
    "a row twice": {"tokens": 2, "rows": 3, "selected": 3, "k": 16},
}


def oracle(t):
    """y [selected, k]: the rows of x, in the dtype of the given tensors."""
    return {"y": t.x[t.index[: int(t.count[0])]]}


def make(rng, weights, cache, tokens, rows, selected, k):
    """Random inputs of the given shape. Idle rows select nothing valid."""
    index = np.full(rows, np.iinfo(np.int32).min, np.int32)
    index[:selected] = np.arange(tokens - 1, tokens - 1 - selected, -1) % tokens
    x = rng.standard_normal((tokens, k), np.float32)
    x[np.setdiff1d(np.arange(tokens), index[:selected])] = np.nan
    arrays = {
        "count": np.array([selected], np.int32),
        "index": index,
        "x": x,
        "y": np.full((rows, k), np.nan, np.float32),
    }
    return Case(arrays, {"k": k}, ("y",))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    kernel(a.index[:rows], a.x, a.y[:rows])


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    if rows := int(a.count[0]):
        launch("select_rows", rows, 256, 0, a.index, a.x, a.y, a.k)
