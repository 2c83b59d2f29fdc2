"""What topk must compute, in PyTorch, and the cases it is checked on."""

from types import SimpleNamespace

import numpy as np
import torch

from mkport.declare.case import Case
from mkport.kernels.moe_group.oracle import oracle as grouped

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
    "13 of 300": {"tokens": 3, "rows": 3, "experts": 300, "k": 13, "softmax": 1},
    "grouped, one token": {"tokens": 1, "rows": 1, "experts": 128, "k": 8, "group": 1},
    "grouped, 5 in 8": {"tokens": 8, "rows": 5, "experts": 128, "k": 8, "softmax": 1, "group": 1},
    "grouped, crowded": {
        "tokens": 8, "rows": 8, "experts": 37, "k": 13, "renormalise": 1, "group": 1,
    },
    "grouped, rows without experts": {
        "tokens": 6, "rows": 5, "experts": 9, "k": 3, "lost": (1, 4), "group": 1,
    },
    "grouped, no token": {"tokens": 2, "rows": 0, "experts": 4, "k": 2, "group": 1},
}  # fmt: skip


def oracle(t):
    """ids and weights [live, k], of rows of finite logits what they must be, of others -1 and NaN;
    with lists, pairs and slots, as moe_group's.

    Source: Shazeer et al., "Outrageously Large Neural Networks", 2017.
    """
    z = t.z[: int(t.count[0])]
    ids = z.sort(dim=1, descending=True, stable=True).indices[:, : t.k]
    scores = torch.softmax(z, 1) if t.softmax else torch.sigmoid(z)
    weights = scores.gather(1, ids)
    if t.renormalise:
        weights = weights / weights.sum(1, keepdim=True)
    lost = ~torch.isfinite(z).all(1, keepdim=True)
    ids = ids.masked_fill(lost, -1)
    out = {"ids": ids, "weights": (weights * t.scale).masked_fill(lost, torch.nan)}
    if hasattr(t, "slots"):
        out |= grouped(SimpleNamespace(count=t.count, ids=ids, slots=t.slots))
    return out


def make(
    rng, weights, cache, tokens, rows, experts, k, softmax=0, renormalise=0, scale=1.0, levels=0,
    lost=(), group=0,
):  # fmt: skip
    """Random logits; `levels`: so few values that ties are everywhere, zeros of both signs too;
    `lost`: rows without experts; `group`: 1 with lists of the pairs by expert."""
    z = 2 * rng.standard_normal((tokens, experts), np.float32)
    if levels:
        z = rng.integers(-levels, levels, (tokens, experts)).astype(np.float32)
        z = np.where(rng.random(z.shape) < 0.5, z, -z).astype(np.float32)
    z[list(lost), -1] = np.inf
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
        "slot_count": min(experts, tokens * k) if group else 0,
        "scale": scale,
    }
    if not group:
        return Case(arrays, values, ("ids", "weights"))
    arrays["pairs"] = np.full(tokens * k, -7, np.int32)
    arrays["slots"] = np.full((values["slot_count"] + 1, 2), -7, np.int32)
    return Case(arrays, values, ("ids", "weights", "slots", "pairs"))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    rule = bool(a.softmax), bool(a.renormalise), np.float32(a.scale)
    lists = (a.pairs, a.slots) if hasattr(a, "slots") else ()
    kernel(a.z[:rows], a.ids[:rows], a.weights[:rows], *rule, *lists)


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    rows, rule = int(a.count[0]), (int(a.softmax), int(a.renormalise), float(a.scale))
    chosen, args = (a.z, a.ids, a.weights), (a.experts, a.k, *rule)
    room = a.experts + 2 * a.k
    if hasattr(a, "slots"):
        lists = (a.pairs, a.slots, rows, a.slot_count)
        launch("topk_group", 1, 256, 4 * (room + 2 * rows * a.k), *chosen, *args, *lists)
    else:
        launch("topk", rows, 128, 4 * room, *chosen, *args)
