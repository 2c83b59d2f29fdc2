"""PyTorch with sums one term after the other, as an ordinary kernel adds.

Its own order is the processor's and its library's business: with as many accumulators as there are
lanes, the error of a sum is a fraction of what the textbook's loop has.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


def product(a: Tensor, b: Tensor) -> Tensor:
    """a [..., m, k] times b [..., k, n], k ascending: [..., m, n]."""
    found = a.new_zeros(*a.shape[:-1], b.shape[-1])
    for k in range(a.shape[-1]):
        found += a[..., k : k + 1] * b[..., k : k + 1, :]
    return found


def total(x: Tensor, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The sum of x over `dims`, all of them if None, in the order of their indices: x's shape less
    `dims`, which stay as 1 where `keepdim`."""
    x = x if dtype is None else x.to(dtype)
    gone = [d % x.ndim for d in (range(x.ndim) if dims is None or not len(dims) else dims)]
    terms = x.movedim(gone, list(range(len(gone)))).flatten(0, len(gone) - 1) if gone else x[None]
    found = torch.zeros_like(terms[0])
    for term in terms:
        found += term
    kept = [1 if d in gone else size for d, size in enumerate(x.shape)]
    return found.reshape(kept) if keepdim else found


def mean(x: Tensor, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Likewise the mean of x over `dims`."""
    found = total(x, dims, keepdim, dtype)
    return found / (x.numel() // max(found.numel(), 1))


IN_ORDER: dict[Any, Callable[..., Tensor]] = {
    aten.mm.default: product,
    aten.bmm.default: product,
    aten.addmm.default: lambda c, a, b, beta=1, alpha=1: beta * c + alpha * product(a, b),
    aten.baddbmm.default: lambda c, a, b, beta=1, alpha=1: beta * c + alpha * product(a, b),
    aten.mv.default: lambda a, b: product(a, b[:, None])[:, 0],
    aten.dot.default: lambda a, b: product(a[None], b[:, None])[0, 0],
    aten.sum.default: lambda x, dtype=None: total(x, dtype=dtype),
    aten.sum.dim_IntList: total,
    aten.mean.default: lambda x, dtype=None: mean(x, dtype=dtype),
    aten.mean.dim: mean,
}


class InOrder(TorchDispatchMode):
    """Within it, float32 products, sums and means add one term after the other."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See PyTorch's `TorchDispatchMode`."""
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if func in IN_ORDER and all(tensor.dtype == torch.float32 for tensor in tensors):
            return IN_ORDER[func](*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
