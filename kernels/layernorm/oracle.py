"""What layernorm must compute, in PyTorch, and the cases it is checked on."""

import numpy as np

from mkport.declare.case import Case

SHAPES = {
    "one token": {"tokens": 1, "rows": 1, "k": 576},
    "batch of 5 in 8": {"tokens": 8, "rows": 5, "k": 80},
    "far from zero": {"tokens": 4, "rows": 3, "k": 48, "mean": 30.0},
    "in place": {"tokens": 4, "rows": 4, "k": 112, "in_place": True},
    "one slice": {"tokens": 2, "rows": 2, "k": 16},
}


def oracle(t):
    """y [live, k]: the normed rows, in the dtype of the given tensors."""
    x = t.x[: int(t.count[0])]
    centred = x - x.mean(dim=-1, keepdim=True)
    return {"y": centred / (centred.square().mean(dim=-1, keepdim=True) + t.eps).sqrt() * t.w}


def make(rng, weights, cache, tokens, rows, k, in_place=False, mean=0.5):
    """Random inputs of the given shape around `mean`."""
    x = np.float32(mean) + rng.standard_normal((tokens, k), np.float32)
    x[rows:] = np.nan
    arrays = {
        "count": np.array([rows], np.int32),
        "x": x,
        "w": rng.standard_normal(k, np.float32),
        "y": x if in_place else np.full_like(x, np.nan),
    }
    return Case(arrays, {"k": k, "eps": 1e-5}, ("y",))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    kernel(a.x[:rows], a.w, a.y[:rows], a.eps)


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    if rows := int(a.count[0]):
        launch("layernorm", rows, 256, 32, a.x, a.w, a.y, a.k, a.eps)
