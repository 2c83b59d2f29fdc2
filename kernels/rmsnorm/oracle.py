"""What rmsnorm must compute, in PyTorch, and the cases it is checked on."""

import numpy as np

from mkport.declare.case import Case

SHAPES = {
    "one token": {"tokens": 1, "rows": 1, "groups": 1, "k": 576},
    "batch of 5 in 8": {"tokens": 8, "rows": 5, "groups": 1, "k": 80},
    "heads": {"tokens": 4, "rows": 3, "groups": 9, "k": 48},
    "in place": {"tokens": 4, "rows": 4, "groups": 1, "k": 112, "in_place": True},
    "small values": {"tokens": 2, "rows": 2, "groups": 2, "k": 16, "scale": 1e-3},
}


def oracle(t):
    """y [live, groups * k]: the normed groups, in the dtype of the given tensors."""
    rows = int(t.count[0])
    x = t.x[:rows].reshape(rows, t.groups, t.k)
    y = x / (x.square().mean(dim=-1, keepdim=True) + t.eps).sqrt() * t.w
    return {"y": y.reshape(rows, t.groups * t.k)}


def make(rng, weights, cache, tokens, rows, groups, k, in_place=False, scale=3.0):
    """Random inputs of the given shape; `scale` is the inputs' standard deviation."""
    x = np.float32(scale) * rng.standard_normal((tokens, groups * k), np.float32)
    x[rows:] = np.nan
    arrays = {
        "count": np.array([rows], np.int32),
        "x": x,
        "w": rng.standard_normal(k, np.float32),
        "y": x if in_place else np.full_like(x, np.nan),
    }
    return Case(arrays, {"groups": groups, "k": k, "eps": 1e-5}, ("y",))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays, each group as a row of its own."""
    rows = int(a.count[0])
    kernel(a.x[:rows].reshape(-1, a.k), a.w, a.y[:rows].reshape(-1, a.k), a.eps)


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays, each group as a row of its own."""
    rows = int(a.count[0]) * a.groups
    if a.groups == 1 and rows:
        launch("rmsnorm", rows, 256, 32, a.x, a.w, a.y, a.k, a.eps)
    elif rows:
        launch("rmsnorm_warps", -(-rows // 8), 256, 0, a.x, a.w, a.y, rows, a.k, a.eps)
