"""What gemm must compute, in PyTorch, and the cases it is checked on."""

from inspect import signature
from types import SimpleNamespace

import numpy as np
import torch

from mkport.declare.case import Case, stored

SHAPES = {
    "one token": {"tokens": 1, "rows": 1, "n": 576, "k": 576},
    "batch of 5 in 8": {"tokens": 8, "rows": 5, "n": 192, "k": 1536},
    "odd columns": {"tokens": 4, "rows": 3, "n": 77, "k": 80},
    "residual": {"tokens": 8, "rows": 8, "n": 96, "k": 64, "residual": True},
    "in place": {"tokens": 4, "rows": 4, "n": 48, "k": 112, "residual": True, "in_place": True},
    "normed": {"tokens": 1, "rows": 1, "n": 80, "k": 1296, "norm": 3.0},
    "4 of 5 rows normed": {
        "tokens": 5, "rows": 4, "n": 40, "k": 176, "residual": True, "norm": 1e-3,
    },
    "normed rows kept": {"tokens": 3, "rows": 2, "n": 72, "k": 1040, "norm": 2.0, "keep": True},
}  # fmt: skip


def normed(t):
    """The live rows of x [live, k], or their norm if there is one."""
    x = t.x[: int(t.count[0])]
    if not hasattr(t, "norm_w"):
        return x
    return x / (x.square().mean(dim=-1, keepdim=True) + t.norm_eps).sqrt() * t.norm_w


def with_norm(rng, case, norm):
    """The case, whose x is of deviation `norm` and goes through a norm; 0: through none."""
    case.values["norm_eps"] = 1e-5 if norm else 0.0
    if norm:
        case.arrays["x"] *= np.float32(norm)
        case.arrays["norm_w"] = rng.standard_normal(case.values["k"], np.float32)
    return case


def oracle(t):
    """y [live, n] = x W^T (+ residual), in the dtype of the given tensors."""
    rows = int(t.count[0])
    x = normed(t)
    y = x @ t.w.T
    if getattr(t, "residual", None) is not None:
        y = t.residual[:rows] + y
    return {"y": y, "norm_y": x} if hasattr(t, "norm_y") else {"y": y}


def make(
    rng,
    weights,
    cache,
    tokens,
    rows,
    n,
    k,
    residual=False,
    in_place=False,
    block=0,
    norm=0,
    keep=False,
):
    """Random inputs of the given shape; weight storage `weights`; `norm` is `with_norm`'s;
    `keep`: the normed rows are an output."""
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
    if keep:
        arrays["norm_y"] = np.full((tokens, k), np.nan, np.float32)
    outputs = ("y", "norm_y") if keep else ("y",)
    return with_norm(rng, Case(arrays, {"n": n, "k": k, "block": block}, outputs), norm)


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    residual = getattr(a, "residual", None)
    residual = None if residual is None else residual[:rows]
    if "norm_w" in signature(kernel.py_func).parameters:
        kept = a.norm_y[:rows] if hasattr(a, "norm_y") else None
        kernel(a.x[:rows], a.w, a.y[:rows], residual, *norm_of(a), kept)
    else:  # a rung that knows no norm
        given = {name: value for name, value in vars(a).items() if name != "w"}
        x = normed(SimpleNamespace(**{n: torch.as_tensor(v) for n, v in given.items()}))
        kernel(x.numpy(), a.w, a.y[:rows], residual)
        if hasattr(a, "norm_y"):
            a.norm_y[:rows] = x.numpy()


def norm_of(a):
    """A case's norm, as kernels take it: (weights [k] or None, eps)."""
    return getattr(a, "norm_w", None), getattr(a, "norm_eps", 0.0)


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
            for name in ("x", "y", "residual", "rows", "norm_y"):
                if getattr(a, name, None) is not None:
                    setattr(some, name, getattr(a, name)[first:])
            call(launch, some)

    return called


@by_eights
def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    tokens = int(a.count[0])
    rows, norm = (a.x, a.w, getattr(a, "residual", None), a.y), norm_of(a)
    kept = getattr(a, "norm_y", None)
    if a.w.dtype == np.float32:
        launch("gemm_f32", -(-a.n // 16), 128, 0, *rows, *norm, kept, tokens, a.n, a.k)
        return
    height = min(16, -(-a.n // launch.multiprocessors))
    blocks = min(-(-a.n // height), launch.multiprocessors)
    if norm[0] is not None:  # of rows that are short enough
        name, held, more = "gemm_normed_bf16", a.k, (*norm, kept)
    elif standalone_bytes(a.k) <= launch.shared_bytes:
        name, held, more = "gemm_bf16", a.k, ()
    else:
        name, held, more = "gemm_long_bf16", HELD, ()
    launch(name, blocks, 256, standalone_bytes(held), *rows, *more, tokens, a.n, a.k, height)
