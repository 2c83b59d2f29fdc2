"""The experts' products of a chunk: tokens sorted by expert, one grouped product for all of them on
a GPU, a loop over the experts elsewhere. No expert costs the host anything on a GPU."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Grouped:
    """The (token, expert) pairs of a chunk, sorted by expert."""

    token: Any  # int64 [pairs] of each pair
    place: Any  # int64 [pairs] where the pair token * top + choice stands
    ends: Any  # int32 [experts] where each expert's pairs end


def grouped(ids: Any, experts: int) -> Grouped:
    """Sorts the choices ids [tokens, top]."""
    import torch

    small = ids.reshape(-1).to(torch.uint8 if experts <= 256 else torch.int32)
    ordered, order = small.sort(stable=True)
    each = torch.arange(experts, device=ids.device, dtype=ordered.dtype)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=ids.device)
    ends = torch.searchsorted(ordered, each, right=True, out_int32=True)
    return Grouped(order // ids.shape[1], place, ends)


def product(x: Any, weights: Any, ends: Any) -> Any:
    """Rows of x [pairs, k], each with its expert of weights [experts, n, k]: [pairs, n]."""
    import torch

    if x.is_cuda and x.dtype == torch.bfloat16:
        return torch._grouped_mm(x, weights.transpose(1, 2), offs=ends)
    out = x.new_empty(len(x), weights.shape[1])
    first = 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        torch.mm(x[first:end], weight.T, out=out[first:end])
        first = end
    return out
