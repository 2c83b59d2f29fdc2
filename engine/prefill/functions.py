"""The element-wise parts of a chunk as pure functions of tensors: what PyTorch's compiler makes one
kernel of each. float32 inside; the caller names the type that comes out."""

from collections.abc import Callable
from functools import cache
from typing import Any


def rms_norm(x: Any, weight: Any, eps: float, dtype: Any) -> Any:
    """x [..., k] over its root mean square, times weight [k]."""
    x = x.float()
    return (x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(dtype)


def layer_norm(x: Any, weight: Any, eps: float, dtype: Any) -> Any:
    """As `rms_norm`, after the mean is taken off."""
    x = x.float()
    x = x - x.mean(-1, keepdim=True)
    return (x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(dtype)


def rotated(x: Any, table: Any, half_split: bool, dtype: Any) -> Any:
    """x [tokens, heads, dim] turned by table [tokens, dim]: dim / 2 cosines, then the sines."""
    import torch

    half = table.shape[-1] // 2
    cos, sin = table[:, None, :half], table[:, None, half:]
    p, q = (x[..., :half], x[..., half:]) if half_split else (x[..., 0::2], x[..., 1::2])
    pair = (p * cos - q * sin, q * cos + p * sin)
    turned = torch.cat(pair, -1) if half_split else torch.stack(pair, -1).flatten(-2)
    return turned.to(dtype)


def gated(gate: Any, up: Any, dtype: Any) -> Any:
    """silu(gate) * up."""
    gate = gate.float()
    return (gate * gate.sigmoid() * up.float()).to(dtype)


def ranked(z: Any) -> Any:
    """Distinct int64 keys [tokens, experts], ordered as logits z; the lower index wins a tie."""
    import torch

    experts = z.shape[-1]
    bits = (z + 0.0).view(torch.int32)  # no negative zero
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    index = torch.arange(experts - 1, -1, -1, device=z.device)
    return ordered.long() * (1 << 32) + index


def chosen_weights(z: Any, ids: Any, softmax: bool, renormalise: bool, scale: float) -> Any:
    """The weights of the chosen experts: float32 [tokens, top]."""
    scores = (z.softmax(-1) if softmax else z.sigmoid()).gather(1, ids)
    if renormalise:
        scores = scores / scores.sum(-1, keepdim=True)
    return scores * scale


def mixed(x: Any, out: Any, place: Any, weights: Any) -> Any:
    """x [tokens, n] plus the weighted sum of each token's rows of out, which `place` finds."""
    tokens, top = weights.shape
    place = place.view(tokens, top)
    for choice in range(top):  # one pass over x: a sum over a dimension would be a slow reduction
        x = x + out[place[:, choice]].float() * weights[:, choice, None]
    return x


FUSED = (rms_norm, layer_norm, rotated, gated, mixed)


@cache
def fused(compiled: bool) -> dict[str, Callable[..., Any]]:
    """Those that a GPU runs, by name, each through PyTorch's compiler if asked for."""
    if not compiled:
        return {function.__name__: function for function in FUSED}
    import torch

    return {f.__name__: torch.compile(f, dynamic=True) for f in FUSED}
