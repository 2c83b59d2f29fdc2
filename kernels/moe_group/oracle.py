"""What moe_group must compute, in PyTorch, and the cases it is checked on."""

import numpy as np
import torch

from mkport.declare.case import Case
from mkport.kernels.moe_group.op import slots_of

SHAPES = {
    "one token": {"tokens": 1, "rows": 1, "experts": 128, "k": 8},
    "batch of 5 in 8": {"tokens": 8, "rows": 5, "experts": 128, "k": 8},
    "more pairs than experts": {"tokens": 8, "rows": 8, "experts": 5, "k": 2},
    "all to one": {"tokens": 8, "rows": 7, "experts": 16, "k": 1, "only": 11},
    "rows without experts": {"tokens": 6, "rows": 6, "experts": 8, "k": 3, "lost": (0, 3)},
    "no experts at all": {"tokens": 2, "rows": 2, "experts": 4, "k": 2, "lost": (0, 1)},
    "no token": {"tokens": 2, "rows": 0, "experts": 4, "k": 2},
}


def oracle(t):
    """slots [s + 1, 2], all of them, and pairs [live choices]."""
    ids = t.ids[: int(t.count[0])].flatten()
    order = torch.argsort(ids, stable=True)
    pairs = order[ids[order] >= 0]
    experts, counts = ids[pairs].unique_consecutive(return_counts=True)
    slots = torch.tensor([-1, len(pairs)]).repeat(t.slots.shape[0], 1)
    firsts, most = counts.cumsum(0) - counts, getattr(t, "most", 0) or max(len(ids), 1)
    used = [
        (expert, first + more)
        for expert, first, count in zip(experts, firsts, counts, strict=True)
        for more in range(0, int(count), most)
    ]
    if used:
        slots[: len(used)] = torch.tensor(used)
    return {"slots": slots, "pairs": pairs}


def grouped(rng, tokens, experts, top, only=None, lost=None, most=0):
    """Random choices, sorted, for the ops behind this: slots [s + 1, 2], pairs [tokens * top]."""
    ids = np.stack([rng.permutation(experts)[:top] for _ in range(tokens)])
    if only is not None:
        ids[:] = only
    if lost is not None:
        ids[lost] = -1
    order = np.argsort(ids.ravel(), kind="stable")
    live = order[ids.ravel()[order] >= 0]
    pairs = np.full(tokens * top, -1, np.int32)
    pairs[: len(live)] = live
    found, first, counts = np.unique(ids.ravel()[live], return_index=True, return_counts=True)
    used = [
        (expert, begin + more)
        for expert, begin, count in zip(found, first, counts, strict=True)
        for more in range(0, count, most or count)
    ]
    slots = np.full((slots_of(experts, tokens, top, most) + 1, 2), (-1, len(live)), np.int32)
    slots[: len(used)] = np.reshape(used, (-1, 2))
    return slots, pairs


def own_slots(a):
    """Of the lists of an expert op's case, [slots + 1, 2], its node's and the one behind them."""
    return a.slots[a.first_slot : a.first_slot + a.slot_count + 1]


def make(rng, weights, cache, tokens, rows, experts, k, only=None, lost=(), most=0):
    """Random choices; `only`: the one expert of every token; `lost`: rows without experts."""
    ids = np.stack([rng.permutation(experts)[:k] for _ in range(tokens)]).astype(np.int32)
    if only is not None:
        ids[:] = only
    ids[list(lost)] = -1
    ids[rows:] = np.iinfo(np.int32).max
    slot_count = slots_of(experts, tokens, k, most)
    arrays = {
        "count": np.array([rows], np.int32),
        "ids": ids,
        "pairs": np.full(tokens * k, -7, np.int32),
        "slots": np.full((slot_count + 1, 2), -7, np.int32),
    }
    values = {"experts": experts, "k": k, "slot_count": slot_count, "most": most}
    return Case(arrays, values, ("slots", "pairs"))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    kernel(a.ids[: int(a.count[0])], a.pairs, a.slots, getattr(a, "most", 0))


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    choices = int(a.count[0]) * a.k
    args = (a.ids, a.pairs, a.slots, choices, a.slot_count, getattr(a, "most", 0))
    launch("moe_group", 1, 256, 8 * choices, *args)
