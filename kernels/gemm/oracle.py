"""What gemm must compute, in PyTorch, and the cases it is checked on."""

from types import SimpleNamespace

import numpy as np

from mkport.declare.case import Case, stored

SHAPES = {
    "one token": {"tokens": 1, "rows": 1, "n": 576, "k": 576},
    "batch of 5 in 8": {"tokens": 8, "rows": 5, "n": 192, "k": 1536},
    "odd columns": {"tokens": 4, "rows": 3, "n": 77, "k": 80},
    "residual": {"tokens": 8, "rows": 8, "n": 96, "k": 64, "residual": True},
    "in place": {"tokens": 4, "rows": 4, "n": 48, "k": 112, "residual": True, "in_place": True},
}


def oracle(t):
    """y [live, n] = x W^T (+ residual), in the dtype of the given tensors."""
    rows = int(t.count[0])
    y = t.x[:rows] @ t.w.T
    if getattr(t, "residual", None) is not None:
        y = t.residual[:rows] + y
    return {"y": y}


def make(rng, weights, cache, tokens, rows, n, k, residual=False, in_place=False, block=0):
    """Random inputs of the given shape; weight storage `weights`."""
    y = np.full((tokens, n), np.nan, np.float32)
    arrays = {
        "count": np.array([rows], np.int32),
        "x": rng.standard_normal((tokens, k), np.float32),
        "w": stored(rng.standard_normal((n, k), np.float32) / np.sqrt(k), weights),
        "y": y,
    }
    if residual:
        y2 = rng.standard_normal((tokens, n), np.float32)
        arrays["residual"] = y2
        if in_place:
            arrays["y"] = y2
    return Case(arrays, {"n": n, "k": k, "block": block}, ("y",))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    residual = getattr(a, "residual", None)
    kernel(a.x[:rows], a.w, a.y[:rows], None if residual is None else residual[:rows])


HELD = 2048  # columns of x that a CUDA kernel holds where all do not fit


def standalone_bytes(k):
    """Shared memory of a CUDA kernel that streams weights: rings, partial sums, 8 rows of x."""
    return 8 * 4 * 16 * (128 + 8) * 2 + 2 * 8 * 8 * 20 * 4 + 8 * (k + 8) * 2


def by_eights(call):
    """`call(launch, a)` for each 8 tokens: the standalone kernels of products take no more."""

    def called(launch, a):
        tokens = int(a.count[0])
        for first in range(0, max(tokens, 1), 8):
            some = SimpleNamespace(**vars(a))
            some.count = np.array([min(tokens - first, 8)], np.int32)
            for name in ("x", "y", "residual", "rows"):
                if getattr(a, name, None) is not None:
                    setattr(some, name, getattr(a, name)[first:])
            call(launch, some)

    return called


@by_eights
def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    tokens = int(a.count[0])
    args = (a.x, a.w, getattr(a, "residual", None), a.y, tokens, a.n, a.k)
    if a.w.dtype == np.float32:
        launch("gemm_f32", -(-a.n // 16), 128, 0, *args)
        return
    height = min(16, -(-a.n // launch.multiprocessors))
    blocks = min(-(-a.n // height), launch.multiprocessors)
    whole = standalone_bytes(a.k) <= launch.shared_bytes
    name, held = ("gemm_bf16", a.k) if whole else ("gemm_long_bf16", HELD)
    launch(name, blocks, 256, standalone_bytes(held), *args, height)
