"""What each op of a step means for a chunk of one sequence, in PyTorch operators.

A function takes the chunk and a node's arguments, tensors by name. Scratch lives in the chunk: what
the machines keep as float32 [rows, columns] may be of the weights' type here, or in another form
between two nodes that belong together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from mkport.engine.prefill.attend import attention, gathered
from mkport.engine.prefill.experts import product
from mkport.engine.prefill.inputs import Inputs
from mkport.engine.prefill.route import chosen, grouped

NORMED = "normed"  # in the scratch: the name of a norm's weights, and the rows that it gave


@dataclass
class Chunk:
    """One sequence's tokens, while they are run."""

    room: Inputs
    fixed: Mapping[str, Any]  # weights and cache
    fused: Mapping[str, Callable[..., Any]]
    dtype: Any  # of weights, so of what they are multiplied with
    scratch: dict[str, Any] = field(default_factory=dict)
    angles: dict[str, Any] = field(default_factory=dict)  # rows of rotary tables, by table


def _embed(c: Chunk, a: SimpleNamespace) -> None:
    c.scratch[a.y] = c.fixed[a.table].index_select(0, c.room.ids).float()


def _rmsnorm(c: Chunk, a: SimpleNamespace) -> None:
    x = c.scratch[a.x]
    rows = x.view(len(x), a.groups, a.k)
    c.scratch[a.y] = c.fused["rms_norm"](rows, c.fixed[a.w], a.eps, c.dtype).view(len(x), -1)


def _layernorm(c: Chunk, a: SimpleNamespace) -> None:
    c.scratch[a.y] = c.fused["layer_norm"](c.scratch[a.x], c.fixed[a.w], a.eps, c.dtype)


def _rows(c: Chunk, a: SimpleNamespace) -> Any:
    """A product's input: its norm, if it has one, which neighbours share."""
    if a.norm_w is None:
        return c.scratch[a.x]
    name, rows = c.scratch.get(NORMED, (None, None))
    if name != a.norm_w:
        rows = c.fused["rms_norm"](c.scratch[a.x], c.fixed[a.norm_w], a.norm_eps, c.dtype)
        c.scratch[NORMED] = a.norm_w, rows
    return rows


def _gemm(c: Chunk, a: SimpleNamespace) -> None:
    x = _rows(c, a)
    if a.norm_y is not None:
        c.scratch[a.norm_y] = x
    y = _wide(x, c.fixed[a.w])
    c.scratch[a.y] = y if a.residual is None else c.scratch[a.residual].add_(y)


def _gemm_rope(c: Chunk, a: SimpleNamespace) -> None:
    _place(c, a, _wide(_rows(c, a), c.fixed[a.w]))


def _rope(c: Chunk, a: SimpleNamespace) -> None:
    x = c.scratch[a.x]
    if a.w is not None:
        x = c.fused["rms_norm"](x.view(len(x), a.heads, -1), c.fixed[a.w], a.eps, x.dtype)
    _place(c, a, x)


def _gemm_silu(c: Chunk, a: SimpleNamespace) -> None:
    x = _rows(c, a)
    gate, up = x @ c.fixed[a.w_gate].T, x @ c.fixed[a.w_up].T
    c.scratch[a.y] = c.fused["gated"](gate, up, c.dtype)


def _attention(c: Chunk, a: SimpleNamespace) -> None:
    pages = c.room.pages[a.page_table]
    k, v = (gathered(c.fixed[name], pages.seen).to(c.dtype) for name in (a.k_pages, a.v_pages))
    q, out = c.scratch[a.q], a.partial if a.y is None else a.y
    c.scratch[out] = attention(q, k, v, c.room.count, pages.keys, a.window, a.scale)


def _attention_combine(c: Chunk, a: SimpleNamespace) -> None:
    c.scratch[a.y] = c.scratch[a.partial]


def _topk(c: Chunk, a: SimpleNamespace) -> None:
    c.scratch[a.ids], c.scratch[a.weights] = chosen(
        c.scratch[a.z], a.k, bool(a.softmax), bool(a.renormalise), a.scale
    )
    if a.pairs is not None:
        c.scratch[a.pairs] = grouped(c.scratch[a.ids], a.experts)


def _moe_group(c: Chunk, a: SimpleNamespace) -> None:
    c.scratch[a.pairs] = grouped(c.scratch[a.ids], a.experts)


def _moe_up(c: Chunk, a: SimpleNamespace) -> None:
    # of all slots: where a layer has a node for each of two parts, `needed` keeps the last alone
    pairs = c.scratch[a.pairs]
    both = product(c.scratch[a.x].index_select(0, pairs.token), c.fixed[a.w_gate], pairs.ends)
    c.scratch[a.act] = c.fused["gated"](both[:, : a.n], both[:, a.up_row :], c.dtype)


def _moe_down(c: Chunk, a: SimpleNamespace) -> None:
    pairs = c.scratch[a.pairs]
    c.scratch[a.y] = product(c.scratch[a.act], c.fixed[a.w], pairs.ends), pairs.place


def _moe_combine(c: Chunk, a: SimpleNamespace) -> None:
    out, place = c.scratch[a.y]
    x = c.scratch[a.x] if a.more is None else c.scratch[a.x].add_(c.scratch[a.more])
    x = c.fused["mixed"](x, out, place, c.scratch[a.weights])
    c.scratch[a.x] = x
    if a.w is not None:
        norm = c.fused["layer_norm" if a.mean else "rms_norm"]
        c.scratch[a.h] = norm(x, c.fixed[a.w], a.eps, c.dtype)


def _wide(x: Any, weight: Any) -> Any:
    """x W^T in float32."""
    import torch

    if x.dtype == torch.float32:
        return x @ weight.T
    if x.is_cuda:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    return x.float() @ weight.float().T


def _place(c: Chunk, a: SimpleNamespace, y: Any) -> None:
    """Turns the heads of a projection, and puts them where queries, or keys and values, go."""
    cache = None if a.pages is None else c.fixed[a.pages]
    heads = y.view(len(y), a.heads, a.head_dim)
    dtype = c.dtype if cache is None else cache.dtype
    if a.rope is None:
        heads = heads.to(dtype)
    else:
        if a.rope not in c.angles:
            c.angles[a.rope] = c.fixed[a.rope].index_select(0, c.room.position)
        heads = c.fused["rotated"](heads, c.angles[a.rope], bool(a.half_split), dtype)
    if cache is None:
        c.scratch[a.y] = heads
        return
    cache[c.room.pages[a.page_table].page, :, c.room.slot] = heads


NODES: dict[str, Callable[[Chunk, SimpleNamespace], None]] = {
    "attention": _attention,
    "attention_combine": _attention_combine,
    "embed": _embed,
    "gemm": _gemm,
    "gemm_rope": _gemm_rope,
    "gemm_silu": _gemm_silu,
    "layernorm": _layernorm,
    "moe_combine": _moe_combine,
    "moe_down": _moe_down,
    "moe_group": _moe_group,
    "moe_up": _moe_up,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    "topk": _topk,
}
