"""What moe_combine must compute, in PyTorch, and the cases it is checked on."""

import numpy as np

from mkport.declare.case import Case

SHAPES = {
    "one token": {"tokens": 1, "rows": 1, "n": 2048, "top": 8},
    "batch of 5 in 8": {"tokens": 8, "rows": 5, "n": 96, "top": 4},
    "one expert a token": {"tokens": 3, "rows": 3, "n": 16, "top": 1},
}


def oracle(t):
    """x [live, n]: x + the sum over choices of weights * y."""
    rows = int(t.count[0])
    y = t.y.reshape(-1, t.top, t.n)[:rows]  # [tokens, top, n]
    return {"x": t.x[:rows] + (t.weights[:rows, :, None] * y).sum(1)}


def make(rng, weights, cache, tokens, rows, n, top):
    """Random outputs of experts, weights that add up to one."""
    chosen = np.sort(rng.random((tokens, top), np.float32))[:, ::-1]
    y = rng.standard_normal((tokens * top, n), np.float32)
    y[rows * top :] = np.nan
    arrays = {
        "count": np.array([rows], np.int32),
        "weights": np.ascontiguousarray(chosen / chosen.sum(1, keepdims=True)),
        "y": y,
        "x": rng.standard_normal((tokens, n), np.float32),
    }
    return Case(arrays, {"n": n, "top": top}, ("x",))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    kernel(a.weights[:rows], a.y.reshape(-1, a.top, a.n)[:rows], a.x[:rows])


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    launch("moe_combine", int(a.count[0]), 256, 0, a.weights, a.y, a.x, a.n, a.top)
