"""The experts' products of a chunk whose tokens are sorted by expert: one grouped product for all
of them on a GPU, a loop over the experts elsewhere. No expert costs the host anything on a GPU."""

from typing import Any


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
