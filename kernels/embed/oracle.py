"""What embed must compute, on PyTorch tensors, and the cases it is checked on."""

import numpy as np

from mkport.declare.case import Case, stored

SHAPES = {
    "one token": {"tokens": 1, "rows": 1, "vocabulary": 300, "k": 576},
    "batch of 5 in 8": {"tokens": 8, "rows": 5, "vocabulary": 64, "k": 48},
    "no token": {"tokens": 2, "rows": 0, "vocabulary": 8, "k": 16},
}


def oracle(t):
    """y [live, k]: the table's rows, in the dtype of the given tensors."""
    return {"y": t.table[t.tokens[: int(t.count[0])]]}


def make(rng, weights, cache, tokens, rows, vocabulary, k):
    """Random inputs of the given shape; weight storage `weights`. Idle rows have no valid id."""
    ids = np.full(tokens, np.iinfo(np.int32).min, np.int32)
    ids[:rows] = rng.integers(0, vocabulary, rows)
    ids[:1] = vocabulary - 1 if rows else ids[:1]
    arrays = {
        "count": np.array([rows], np.int32),
        "tokens": ids,
        "table": stored(rng.standard_normal((vocabulary, k), np.float32), weights),
        "y": np.full((tokens, k), np.nan, np.float32),
    }
    return Case(arrays, {"k": k}, ("y",))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    kernel(a.tokens[:rows], a.table, a.y[:rows])


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    kernel = "embed_f32" if a.table.dtype == np.float32 else "embed_bf16"
    if rows := int(a.count[0]):
        launch(kernel, rows, 256, 0, a.tokens, a.table, a.y, a.k)
