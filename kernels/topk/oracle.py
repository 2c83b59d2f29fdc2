"""What topk must compute, in PyTorch, and the cases it is checked on."""

import numpy as np
import torch

from mkport.declare.case import Case

SHAPES = {
    "sigmoid, 8 of 128": {"tokens": 8, "rows": 5, "experts": 128, "k": 8},
    "softmax, 8 of 128": {"tokens": 8, "rows": 8, "experts": 128, "k": 8, "softmax": 1},
    "renormalised, 2 of 8": {
        "tokens": 4, "rows": 4, "experts": 8, "k": 2, "softmax": 1, "renormalise": 1,
    },
    "scaled, 3 of 37": {
        "tokens": 3, "rows": 2, "experts": 37, "k": 3, "renormalise": 1, "scale": 2.5,
    },
    "ties": {"tokens": 8, "rows": 8, "experts": 40, "k": 6, "levels": 3},
    "all of 5": {"tokens": 2, "rows": 2, "experts": 5, "k": 5, "softmax": 1},
    "one expert": {"tokens": 2, "rows": 2, "experts": 1, "k": 1},
}  # fmt: skip


def oracle(t):
    """ids and weights [live, k]; of rows of finite logits only.

    Source: Shazeer et al., "Outrageously Large Neural Networks", 2017.
    """
    z = t.z[: int(t.count[0])]
    ids = z.sort(dim=1, descending=True, stable=True).indices[:, : t.k]
    scores = torch.softmax(z, 1) if t.softmax else torch.sigmoid(z)
    weights = scores.gather(1, ids)
    if t.renormalise:
        weights = weights / weights.sum(1, keepdim=True)
    return {"ids": ids, "weights": weights * t.scale}


def make(
    rng, weights, cache, tokens, rows, experts, k, softmax=0, renormalise=0, scale=1.0, levels=0
):
    """Random logits; `levels`: so few values that ties are everywhere, zeros of both signs too."""
    z = 2 * rng.standard_normal((tokens, experts), np.float32)
    if levels:
        z = rng.integers(-levels, levels, (tokens, experts)).astype(np.float32)
        z = np.where(rng.random(z.shape) < 0.5, z, -z).astype(np.float32)
    z[rows:] = np.nan
    arrays = {
        "count": np.array([rows], np.int32),
        "z": z,
        "ids": np.full((tokens, k), np.iinfo(np.int32).min, np.int32),
        "weights": np.full((tokens, k), np.nan, np.float32),
    }
    values = {
        "experts": experts,
        "k": k,
        "softmax": softmax,
        "renormalise": renormalise,
        "scale": scale,
    }
    return Case(arrays, values, ("ids", "weights"))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    scale = np.float32(a.scale)
    kernel(a.z[:rows], a.ids[:rows], a.weights[:rows], bool(a.softmax), bool(a.renormalise), scale)


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    flags = (int(a.softmax), int(a.renormalise), float(a.scale))
    args = (a.z, a.ids, a.weights, a.experts, a.k, *flags)
    launch("topk", int(a.count[0]), 128, 4 * (a.experts + 2 * a.k), *args)
