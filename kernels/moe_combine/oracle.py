"""What moe_combine must compute, in PyTorch, and the cases it is checked on."""

import numpy as np

from mkport.declare.case import Case

SHAPES = {
    "one token": {"tokens": 1, "rows": 1, "n": 2048, "top": 8},
    "batch of 5 in 8": {"tokens": 8, "rows": 5, "n": 96, "top": 4},
    "one expert a token": {"tokens": 3, "rows": 3, "n": 16, "top": 1},
    "then rmsnorm": {"tokens": 4, "rows": 3, "n": 112, "top": 3, "norm": "root"},
    "then layernorm": {"tokens": 2, "rows": 2, "n": 80, "top": 9, "norm": "mean"},
    "with attention's output": {"tokens": 3, "rows": 2, "n": 1104, "top": 8, "more": True},
    "then the norm of both": {
        "tokens": 2,
        "rows": 2,
        "n": 48,
        "top": 2,
        "norm": "root",
        "more": True,
    },
    "to another row": {"tokens": 2, "rows": 1, "n": 1040, "top": 3, "more": True, "out": True},
    "to another row, then its norm": {
        "tokens": 3,
        "rows": 2,
        "n": 64,
        "top": 4,
        "norm": "mean",
        "out": True,
    },
    "then the norm of a long row": {"tokens": 1, "rows": 1, "n": 2064, "top": 8, "norm": "root"},
}


def oracle(t):
    """x, or out [live, n]: x (+ more) + the sum over choices of weights * y; h [live, n]: its
    norm."""
    rows = int(t.count[0])
    y = t.y.reshape(-1, t.top, t.n)[:rows]  # [tokens, top, n]
    before = t.x[:rows] + t.more[:rows] if hasattr(t, "more") else t.x[:rows]
    x = before + (t.weights[:rows, :, None] * y).sum(1)
    name = "out" if hasattr(t, "out") else "x"
    if not hasattr(t, "w"):
        return {name: x}
    centred = x - x.mean(dim=-1, keepdim=True) if t.mean else x
    return {
        name: x,
        "h": centred / (centred.square().mean(dim=-1, keepdim=True) + t.eps).sqrt() * t.w,
    }


def make(rng, weights, cache, tokens, rows, n, top, norm=None, more=False, out=False):
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
    if more:
        arrays["more"] = rng.standard_normal((tokens, n), np.float32)
    if out:
        arrays["out"] = np.full((tokens, n), np.nan, np.float32)
    if norm is not None:
        arrays["w"] = rng.standard_normal(n, np.float32)
        arrays["h"] = np.full((tokens, n), np.nan, np.float32)
    values = {"n": n, "top": top, "mean": int(norm == "mean"), "eps": 1e-5}
    written = ("out" if out else "x",)
    return Case(arrays, values, written if norm is None else (*written, "h"))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    live = a.weights[:rows], a.y.reshape(-1, a.top, a.n)[:rows], a.x[:rows]
    more = a.more[:rows] if hasattr(a, "more") else None
    out = a.out[:rows] if hasattr(a, "out") else None
    if hasattr(a, "w"):
        kernel(*live, more, out, a.w, a.h[:rows], a.eps, a.mean)
    else:
        kernel(*live, more, out)


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    rows = int(a.count[0])
    sums = a.weights, a.y, a.x, getattr(a, "more", None), getattr(a, "out", None)
    if hasattr(a, "w"):
        launch("moe_combine_norm", rows, 256, 32, *sums, a.w, a.h, a.n, a.top, a.mean, a.eps)
    else:
        launch("moe_combine", rows, 256, 0, *sums, a.n, a.top)
