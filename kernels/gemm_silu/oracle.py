"""What gemm_silu must compute, in PyTorch, and the cases it is checked on."""

import numpy as np
import torch

from mkport.declare.case import Case, stored
from mkport.kernels.gemm.oracle import by_eights, norm_of, normed, standalone_bytes, with_norm

SHAPES = {
    "one token": {"tokens": 1, "rows": 1, "n": 192, "k": 576},
    "batch of 5 in 8": {"tokens": 8, "rows": 5, "n": 96, "k": 80},
    "odd columns": {"tokens": 4, "rows": 4, "n": 77, "k": 48},
    "fewer columns than a tile": {"tokens": 8, "rows": 7, "n": 5, "k": 16},
    "large gates": {"tokens": 8, "rows": 8, "n": 64, "k": 64, "scale": 60.0},
    "normed": {"tokens": 1, "rows": 1, "n": 64, "k": 2064, "norm": 3.0},
    "7 of 8 rows normed": {"tokens": 8, "rows": 7, "n": 36, "k": 48, "norm": 0.5},
}


def oracle(t):
    """y [live, n] = silu(x Wg^T) * (x Wu^T), in the dtype of the given tensors."""
    x = normed(t)
    return {"y": torch.nn.functional.silu(x @ t.w_gate.T) * (x @ t.w_up.T)}


def make(rng, weights, cache, tokens, rows, n, k, scale=1.0, block=0, norm=0):
    """Random inputs of the given shape; weight storage `weights`, gates of deviation `scale`;
    `norm` is `with_norm`'s."""
    gate, up = rng.standard_normal((2, n, k), np.float32) / np.sqrt(np.float32(k))
    x = rng.standard_normal((tokens, k), np.float32)
    x[rows:] = np.nan
    arrays = {
        "count": np.array([rows], np.int32),
        "x": x,
        "w_gate": stored(np.float32(scale) * gate, weights),
        "w_up": stored(up, weights),
        "y": np.full((tokens, n), np.nan, np.float32),
    }
    return with_norm(rng, Case(arrays, {"n": n, "k": k, "block": block}, ("y",)), norm)


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    kernel(a.x[:rows], a.w_gate, a.w_up, a.y[:rows], *norm_of(a))


@by_eights
def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    rows, sizes, norm = (a.x, a.w_gate, a.w_up, a.y), (int(a.count[0]), a.n, a.k), norm_of(a)
    if a.w_gate.dtype == np.float32:
        launch("gemm_silu_f32", -(-a.n // 8), 64, 0, *rows, *norm, *sizes)
        return
    height = min(8, -(-a.n // launch.multiprocessors))
    blocks = min(-(-a.n // height), launch.multiprocessors)
    name, norm = ("gemm_silu_bf16", ()) if norm[0] is None else ("gemm_silu_normed_bf16", norm)
    launch(name, blocks, 256, standalone_bytes(a.k), *rows, *norm, *sizes, height)
