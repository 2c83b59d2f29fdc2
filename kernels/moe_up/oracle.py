"""What moe_up must compute, in PyTorch, and the cases it is checked on."""

from inspect import signature

import numpy as np
import torch

from mkport.declare.case import Case, stored
from mkport.kernels.gemm.oracle import standalone_bytes
from mkport.kernels.moe_group.oracle import grouped, own_slots

SHAPES = {
    "one token, 8 experts": {"tokens": 1, "experts": 16, "top": 8, "n": 96, "k": 128},
    "batch of 8": {"tokens": 8, "experts": 12, "top": 4, "n": 64, "k": 80},
    "gate and up in one": {"tokens": 5, "experts": 6, "top": 2, "n": 48, "k": 64, "fused": True},
    "all to one": {"tokens": 7, "experts": 3, "top": 1, "n": 32, "k": 112, "only": 1},
    "odd columns": {"tokens": 5, "experts": 4, "top": 2, "n": 37, "k": 48},
    "larger than a cache": {"tokens": 8, "experts": 2, "top": 1, "n": 768, "k": 1024, "only": 1},
    "a row without experts": {"tokens": 6, "experts": 4, "top": 2, "n": 32, "k": 16, "lost": 2},
    "some of the slots": {"tokens": 8, "experts": 12, "top": 4, "n": 64, "k": 80, "own": (5, 6)},
    "slots of one token": {"tokens": 1, "experts": 16, "top": 8, "n": 32, "k": 64, "own": (3, 5)},
}


def oracle(t):
    """act [pairs, n] up to the node's last pair; a pair of other slots keeps what it held."""
    slots = own_slots(t)
    act = t.act[: int(slots[-1, 1])].clone()
    for (expert, first), (_, end) in zip(slots[:-1], slots[1:], strict=True):
        if expert >= 0:
            x = t.x[t.pairs[first:end] // t.top]
            gate, up = x @ t.w_gate[expert, : t.n].T, x @ t.w_up[expert, t.up_row :].T
            act[first:end] = torch.nn.functional.silu(gate) * up
    return {"act": act}


def make(
    rng,
    weights,
    cache,
    tokens,
    experts,
    top,
    n,
    k,
    fused=False,
    only=None,
    lost=None,
    most=0,
    own=None,
):
    """Random routing and inputs; `fused`: one tensor holds gate, then up, of each expert.

    `only`: the one expert of every token; `lost`: a row without experts; `own`: the first of the
    node's slots, and how many it has, where these are not all.
    """
    slots, pairs = grouped(rng, tokens, experts, top, only, lost, most)
    w = rng.standard_normal((2, experts, n, k), np.float32) / np.sqrt(np.float32(k))
    if fused:
        w_gate = w_up = stored(np.concatenate(w, axis=1), weights)  # [experts, 2 n, k]
    else:
        w_gate, w_up = stored(w[0], weights), stored(w[1], weights)
    x = rng.standard_normal((tokens, k), np.float32)
    if lost is not None:
        x[lost] = np.nan
    arrays = {
        "count": np.array([tokens], np.int32),
        "slots": slots,
        "pairs": pairs,
        "x": x,
        "w_gate": w_gate,
        "w_up": w_up,
        "act": np.full((tokens * top, n), np.nan if own is None else 0.5, np.float32),
    }
    first_slot, slot_count = own or (0, len(slots) - 1)
    values = {
        "n": n,
        "k": k,
        "top": top,
        "first_slot": first_slot,
        "slot_count": slot_count,
        "slot_step": max(1, slot_count - 1),
        "up_row": n if fused else 0,
        "most": most,
    }
    return Case(arrays, values, ("act",), {"act": (len(slots) - 1, n)})


def call_standalone(kernel, a):
    """Runs the standalone kernel, or a rung that is given `ids` and returns by token and choice."""
    if "ids" not in signature(kernel.py_func).parameters:
        kernel(a.x, a.w_gate, a.w_up, a.up_row, own_slots(a), a.pairs, a.act)
        return
    slots = own_slots(a)
    own = a.pairs[slots[0, 1] : slots[-1, 1]]
    ids = np.full(len(a.pairs), -1)
    ids[own] = np.repeat(slots[:-1, 0], np.diff(slots[:, 1]))
    act = np.empty((len(a.x), a.top, a.n), np.float32)
    kernel(a.x, a.w_gate, a.w_up, a.up_row, ids.reshape(-1, a.top), act)
    a.act[slots[0, 1] : slots[-1, 1]] = act.reshape(-1, a.n)[own]


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays; up to 8 pairs of an expert."""
    args = (own_slots(a), a.pairs, a.x, a.w_gate, a.w_up, a.act, a.n, a.k, a.top, a.up_row)
    tiles = -(-a.n // 8) * a.slot_count
    if a.w_gate.dtype == np.float32:
        launch("moe_up_f32", tiles, 64, 0, *args)
        return
    shared = standalone_bytes(a.k) + 8 * (a.slot_count + 1) + 4
    blocks = min(tiles, launch.multiprocessors)
    launch("moe_up_bf16", blocks, 256, shared, *args, a.slot_count)
