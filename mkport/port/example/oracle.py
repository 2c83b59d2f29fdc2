"""What example must compute, in PyTorch, and the cases that it is checked on."""

import numpy as np

from mkport.declare.case import Case

SHAPES = {
    "one row": {"rows": 1, "n": 64},
    "five rows": {"rows": 5, "n": 176},
}


def oracle(t):
    """The outputs by name, in the dtype of the given tensors."""
    return {"y": t.factor * t.x}


def make(rng, weights, cache, rows, n):
    """Random inputs of a shape; outputs are full of NaN, so that what is not written shows."""
    x = rng.standard_normal((rows, n), np.float32)
    arrays = {"x": x, "y": np.full_like(x, np.nan)}
    return Case(arrays, {"n": n, "factor": 0.5}, ("y",))


def call_standalone(kernel, a):
    """Runs the ordinary Numba kernel on a case's arrays."""
    kernel(a.x, a.y, np.float32(a.factor))


def call_standalone_cuda(launch, a):
    """Launches the ordinary CUDA kernel: name, blocks, threads, shared bytes, arguments."""
    launch("example", len(a.x), 128, 0, a.x, a.y, a.n, a.factor)
