"""What gemm_rope must compute, in PyTorch, and the cases it is checked on."""

from typing import Any

import numpy as np

from mkport.declare.case import stored
from mkport.kernels.gemm.oracle import by_eights, norm_of, normed, standalone_bytes, with_norm
from mkport.kernels.rope.oracle import deliver, rotate, surroundings

SHAPES: dict[str, dict[str, Any]] = {
    "queries": {"tokens": 1, "rows": 1, "heads": 9, "head_dim": 64, "k": 576},
    "interleaved": {"tokens": 8, "rows": 5, "heads": 2, "head_dim": 48, "k": 80, "half_split": 0},
    "one tile a head": {"tokens": 4, "rows": 4, "heads": 3, "head_dim": 16, "k": 48},
    "keys": {"tokens": 8, "rows": 7, "heads": 3, "head_dim": 64, "k": 112, "cached": True},
    "interleaved keys": {
        "tokens": 3, "rows": 3, "heads": 2, "head_dim": 32, "k": 64, "half_split": 0,
        "cached": True,
    },
    "values": {
        "tokens": 8, "rows": 6, "heads": 2, "head_dim": 80, "k": 16, "rotated": False,
        "cached": True,
    },
    "normed": {"tokens": 1, "rows": 1, "heads": 2, "head_dim": 64, "k": 1040, "norm": 3.0},
    "5 of 6 rows normed": {
        "tokens": 6, "rows": 5, "heads": 3, "head_dim": 32, "k": 80, "cached": True, "norm": 2.0,
    },
}  # fmt: skip


def oracle(t):
    """The rotated products y [live, heads * head_dim], or the whole cache [pages, heads, page,
    head_dim], in the dtype of the given tensors."""
    product = normed(t) @ t.w.T
    return deliver(t, rotate(t, product.unflatten(1, (t.heads, t.head_dim))))


def make(
    rng, weights, cache, tokens, rows, heads, head_dim, k, half_split=1, rotated=True, cached=False,
    block=0, norm=0,
):  # fmt: skip
    """Random inputs of the given shape; weight storage `weights`, cache storage `cache`; `norm` is
    `with_norm`'s."""
    case = surroundings(rng, cache, tokens, rows, heads, head_dim, half_split, rotated, cached)
    w = rng.standard_normal((heads * head_dim, k), np.float32) / np.sqrt(np.float32(k))
    case.arrays["x"] = rng.standard_normal((tokens, k), np.float32)
    case.arrays["x"][rows:] = np.nan
    case.arrays["w"] = stored(w, weights)
    case.values |= {"k": k, "block": block}
    return with_norm(rng, case, norm)


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    split = (-1, a.heads, a.head_dim)
    kernel(
        a.x[:rows],
        a.w.reshape(a.heads, a.head_dim, a.k),
        a.rows[:rows],
        getattr(a, "rope", None),
        bool(a.half_split),
        a.y[:rows].reshape(split) if hasattr(a, "y") else None,
        getattr(a, "pages", None),
        getattr(a, "page_table", None),
        *norm_of(a),
    )


@by_eights
def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    names = ("x", "w", "rows", "rope", "page_table", "y", "pages")
    tensors = [getattr(a, name, None) for name in names]
    sizes = (a.heads, a.head_dim, a.k, a.page, a.pages_per_sequence, a.half_split)
    sizes, norm = (int(a.count[0]), *sizes), norm_of(a)
    pairs = a.heads * a.head_dim // 2
    if a.w.dtype == np.float32:
        launch("gemm_rope_f32", pairs // 8, 64, 0, *tensors, *norm, *sizes)
        return
    height = next(h for h in (1, 2, 4, 8) if h == 8 or pairs // h <= launch.multiprocessors)
    blocks = min(pairs // height, launch.multiprocessors)
    name, norm = ("gemm_rope_bf16", ()) if norm[0] is None else ("gemm_rope_normed_bf16", norm)
    launch(name, blocks, 256, standalone_bytes(a.k), *tensors, *norm, *sizes)
