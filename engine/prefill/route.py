"""Which experts a chunk's tokens take, with what weights, and the pairs of both in order of expert.

On a GPU two kernels of `route.cu`, on the stream that PyTorch is at; elsewhere PyTorch's operators.
What is multiplied with the experts' weights is in `experts`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mkport.engine.prefill.functions import chosen_weights, ranked

SOURCE = Path(__file__).with_name("route.cu")
CHOOSERS, GROUPERS = 128, 256  # threads of a block: a warp a token, a block an expert


@dataclass(frozen=True)
class Grouped:
    """The (token, expert) pairs of a chunk, sorted by expert."""

    token: Any  # int64 [pairs] of each pair
    place: Any  # int64 [pairs] where the pair token * top + choice stands
    ends: Any  # int32 [experts] where each expert's pairs end


def chosen(
    z: Any,
    top: int,
    softmax: bool,
    renormalise: bool,
    scale: float,
) -> tuple[Any, Any]:
    """The `top` best experts of logits z [tokens, experts], best first: ids [tokens, top] and
    weights float32 [tokens, top]. A lower index wins a tie; a row that is not finite takes any."""
    import torch

    tokens, experts = z.shape
    if not z.is_cuda:
        ids = experts - 1 - (ranked(z).topk(top).values & 0xFFFFFFFF)
        return ids, chosen_weights(z, ids, softmax, renormalise, scale)
    ids = torch.empty(tokens, top, dtype=torch.int32, device=z.device)
    weights = torch.empty(tokens, top, dtype=torch.float32, device=z.device)
    numbers = np.array([tokens, experts, top, softmax, renormalise], np.int32)
    blocks = -(-tokens // (CHOOSERS // 32))
    _launch(
        "choose", blocks, CHOOSERS, 0, z.contiguous(), ids, weights, *numbers, np.float32(scale)
    )
    return ids, weights


def grouped(ids: Any, experts: int) -> Grouped:
    """Sorts the choices ids [tokens, top]."""
    import torch

    pairs, top = ids.numel(), ids.shape[1]
    if ids.is_cuda:
        token, place = (torch.empty(pairs, dtype=torch.int64, device=ids.device) for _ in range(2))
        ends = torch.empty(experts, dtype=torch.int32, device=ids.device)
        numbers = np.array([pairs, top], np.int32)
        shared = 2 * 4 * GROUPERS // 32
        _launch("group", experts, GROUPERS, shared, ids.int(), token, place, ends, *numbers)
        return Grouped(token, place, ends)
    ordered, order = ids.reshape(-1).sort(stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(pairs)
    ends = torch.searchsorted(ordered, torch.arange(experts), right=True, out_int32=True)
    return Grouped(order // top, place, ends)


def _launch(kernel: str, blocks: int, threads: int, shared: int, *args: Any) -> None:
    """Queues a kernel where PyTorch's are queued; tensors are passed as they lie in memory."""
    import cupy
    import torch

    from mkport.machines.cuda.gpu import load

    given = tuple(np.uint64(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in args)
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        function = load(SOURCE.read_text(encoding="utf-8"), kernel)
        function((blocks,), (threads,), given, shared_mem=shared)
