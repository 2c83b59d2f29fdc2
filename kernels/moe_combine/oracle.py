"""What moe_combine must compute, in PyTorch, and the cases it is checked on."""

import numpy as np

from mkport.declare.case import Case

SHAPES = {
    "one token": {"tokens": 1, "rows": 1, "n": 2048, "top": 8},
    "batch of 5 in 8": {"tokens": 8, "rows": 5, "n": 96, "top": 4},
    "one expert a token": {"tokens": 3, "rows": 3, "n": 16, "top": 1},
    "then rmsnorm": {"tokens": 4, "rows": 3, "n": 112, "top": 3, "norm": "root"},
    "then layernorm": {"tokens": 2, "rows": 2, "n": 80, "top": 9, "norm": "mean"},
    "then the norm of a long row": {"tokens": 1, "rows": 1, "n": 2064, "top": 8, "norm": "root"},
}


def oracle(t):
    """x [live, n]: x + the sum over choices of weights * y; h [live, n]: its norm, if asked for."""
    rows = int(t.count[0])
    y = t.y.reshape(-1, t.top, t.n)[:rows]  # [tokens, top, n]
    x = t.x[:rows] + (t.weights[:rows, :, None] * y).sum(1)
    if not hasattr(t, "w"):
        return {"x": x}
    centred = x - x.mean(dim=-1, keepdim=True) if t.mean else x
    return {
        "x": x,
        "h": centred / (centred.square().mean(dim=-1, keepdim=True) + t.eps).sqrt() * t.w,
    }


def make(rng, weights, cache, tokens, rows, n, top, norm=None):
    """Random outputs of experts, weights that add up to one; `norm` may be "root" or "mean"."""
    chosen = np.sort(rng.random((tokens, top), np.float32))[:, ::-1]
    y = rng.standard_normal((tokens * top, n), np.float32)
    y[rows * top :] = np.nan
    arrays = {
        "count": np.array([rows], np.int32),
        "weights": np.ascontiguousarray(chosen / chosen.sum(1, keepdims=True)),
        "y": y,
        "x": rng.standard_normal((tokens, n), np.float32),
    }
    if norm is not None:
        arrays["w"] = rng.standard_normal(n, np.float32)
        arrays["h"] = np.full((tokens, n), np.nan, np.float32)
    values = {"n": n, "top": top, "mean": int(norm == "mean"), "eps": 1e-5}
    return Case(arrays, values, ("x",) if norm is None else ("x", "h"))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    live = a.weights[:rows], a.y.reshape(-1, a.top, a.n)[:rows], a.x[:rows]
    if hasattr(a, "w"):
        kernel(*live, a.w, a.h[:rows], a.eps, a.mean)
    else:
        kernel(*live)


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    rows, sums = int(a.count[0]), (a.weights, a.y, a.x)
    if hasattr(a, "w"):
        launch("moe_combine_norm", rows, 256, 32, *sums, a.w, a.h, a.n, a.top, a.mean, a.eps)
    else:
        launch("moe_combine", rows, 256, 0, *sums, a.n, a.top)
