"""What moe_down must compute, in PyTorch, and the cases it is checked on."""

import numpy as np

from mkport.declare.case import Case, stored
from mkport.kernels.gemm.oracle import standalone_bytes
from mkport.kernels.moe_group.oracle import grouped, own_slots

SHAPES = {
    "one token, 8 experts": {"tokens": 1, "experts": 16, "top": 8, "n": 128, "k": 96},
    "batch of 8": {"tokens": 8, "experts": 12, "top": 4, "n": 64, "k": 80},
    "all to one": {"tokens": 7, "experts": 3, "top": 1, "n": 32, "k": 128, "only": 1},
    "odd columns": {"tokens": 5, "experts": 4, "top": 2, "n": 37, "k": 48},
    "a row without experts": {"tokens": 6, "experts": 4, "top": 2, "n": 32, "k": 16, "lost": 2},
    "some of the slots": {"tokens": 8, "experts": 12, "top": 4, "n": 64, "k": 80, "own": (5, 6)},
    "slots of one token": {"tokens": 1, "experts": 16, "top": 8, "n": 32, "k": 64, "own": (3, 5)},
}


def oracle(t):
    """y [pairs, n] up to the last pair; the row of a pair that is in none of the node's slots keeps
    what it held."""
    slots = own_slots(t)
    live = int(t.slots[-1, 1])
    y = t.y[: int(t.pairs[:live].max()) + 1].clone()
    for (expert, first), (_, end) in zip(slots[:-1], slots[1:], strict=True):
        if expert >= 0:
            y[t.pairs[first:end]] = t.act[first:end] @ t.w[expert].T
    return {"y": y}


def make(rng, weights, cache, tokens, experts, top, n, k, only=None, lost=None, most=0, own=None):
    """Random routing and inputs; `only`: the one expert of every token; `lost`: a row without;
    `own`: the first of the node's slots, and how many it has, where these are not all."""
    slots, pairs = grouped(rng, tokens, experts, top, only, lost, most)
    act = rng.standard_normal((tokens * top, k), np.float32)
    act[slots[-1, 1] :] = np.nan
    arrays = {
        "slots": slots,
        "pairs": pairs,
        "act": act,
        "w": stored(rng.standard_normal((experts, n, k), np.float32) / np.sqrt(k), weights),
        "y": rng.standard_normal((tokens * top, n), np.float32),
    }
    logical = {"act": (len(slots) - 1, k), "y": (len(slots) - 1, n)}
    first_slot, slot_count = own or (0, len(slots) - 1)
    values = {
        "n": n,
        "k": k,
        "first_slot": first_slot,
        "slot_count": slot_count,
        "slot_step": max(1, slot_count - 1),
        "most": most,
    }
    return Case(arrays, values, ("y",), logical)


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    kernel(a.act, a.w, own_slots(a), a.pairs, a.y)


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays; up to 8 pairs of an expert."""
    args = (own_slots(a), a.pairs, a.act, a.w, a.y, a.n, a.k)
    tiles = -(-a.n // 16) * a.slot_count
    if a.w.dtype == np.float32:
        launch("moe_down_f32", tiles, 128, 0, *args)
        return
    shared = standalone_bytes(a.k) + 8 * (a.slot_count + 1) + 4
    blocks = min(tiles, launch.multiprocessors)
    launch("moe_down_bf16", blocks, 256, shared, *args, a.slot_count)
