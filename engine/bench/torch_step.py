"""A decode step in plain PyTorch on a machine's own weights: the baseline of the GPU benchmark, and
in float32 what both are held to.

The step is what a careful user would write: torch.compile on a layer, one key-value cache without
pages, one CUDA graph; for the experts either grouped products, which read each chosen expert once,
or gathered rows, which a compiler can fuse with their products. PyTorch is imported when one is
made.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mkport.models.base import DecoderConfig
from mkport.models.cohere2 import CohereConfig
from mkport.models.step import FULL_TABLE, WINDOW_TABLE

OUTER = ("model.", "lm_head.")  # what the names of weights begin with


class Kind(NamedTuple):
    """What a layer is like; layers of a kind are compiled once."""

    window: int  # keys; 0: all
    dense: bool  # a gated feed-forward, not experts
    rotated: bool
    parallel: bool  # attention and feed-forward read the same input
    pairs: bool  # a rotated pair is 2 i and 2 i + 1, not i and i + half


def kinds(config: DecoderConfig) -> list[Kind]:
    """The kind of every layer."""
    every = range(config.layers)
    cohere = isinstance(config, CohereConfig)
    windows = getattr(config, "windows", (getattr(config, "window", 0),) * config.layers)
    rotated = getattr(config, "rotated", (True,) * config.layers)
    mixed = getattr(config, "experts", None) is not None
    sparse = getattr(config, "sparse", (mixed,) * config.layers)
    dense = [bool(config.dense[i]) if isinstance(config, CohereConfig) else not sparse[i]
             for i in every]  # fmt: skip
    return [Kind(windows[i], dense[i], rotated[i], cohere, cohere) for i in every]


def view(array: Any) -> Any:
    """A CuPy array as a torch tensor on the same memory; uint16 is bfloat16."""
    import torch

    if array.dtype == np.uint16:
        return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)


class TorchStep:
    """One token for each of `rows` sequences of `context` positions, at the last of them.

    `tensors` are a machine's, bfloat16 weights and cache; the cache is copied out of its pages.
    """

    def __init__(
        self, config: DecoderConfig, tensors: Mapping[str, Any], rows: int, context: int
    ) -> None:
        self.config, self.rows, self.context = config, rows, context
        self._kinds = kinds(config)
        self._weights = {n: view(a) for n, a in tensors.items() if n.startswith(OUTER)}
        self.tokens = view(tensors["tokens"])[:rows].long()
        half = config.head_dim // 2
        angles = view(tensors["rope"])[context - 1] if "rope" in tensors else None
        self._cos = None if angles is None else angles[:half]
        self._sin = None if angles is None else angles[half:]
        self._caches = [
            tuple(self._unpaged(tensors, layer, part) for part in "kv")
            for layer in range(config.layers)
        ]

    def _unpaged(self, tensors: Mapping[str, Any], layer: int, part: str) -> Any:
        """[rows, kv_heads, context, head_dim] of a layer's keys or values."""
        windowed = self._kinds[layer].window and WINDOW_TABLE in tensors
        table = view(tensors[WINDOW_TABLE if windowed else FULL_TABLE])[: self.rows].long()
        pages = view(tensors[f"cache.{layer}.{part}"])[table]  # [rows, pages, heads, page, dim]
        rows, count, heads, page, dim = pages.shape
        flat = pages.transpose(1, 2).reshape(rows, heads, count * page, dim)
        return flat[:, :, : self.context].contiguous()

    def compiled(self, form: str, tuned: bool = False) -> tuple[Any, Any]:
        """A layer and the step's end, compiled for `capture`. With `tuned` the compiler tries its
        kernels' settings, which takes minutes."""
        import torch

        torch._dynamo.config.cache_size_limit = 64
        torch._inductor.config.coordinate_descent_tuning = tuned
        layer, ends = torch.compile(_layer, dynamic=False), torch.compile(_ends, dynamic=False)
        with torch.no_grad():
            for _ in range(2):
                self.run(torch.bfloat16, layer, ends, form)
        return layer, ends

    def capture(self, layer: Any, ends: Any, form: str) -> Any:
        """The step as a CUDA graph; `.replay()` runs it, `.logits` is its output."""
        import torch

        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.no_grad(), torch.cuda.stream(stream):
            self.run(torch.bfloat16, layer, ends, form)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
            logits = self.run(torch.bfloat16, layer, ends, form)
        graph.logits = logits
        return graph

    def run(
        self,
        dtype: Any,
        layer: Any = None,
        ends: Any = None,
        form: str = "gathered",
        margins: list[Any] | None = None,
    ) -> Any:
        """The logits [rows, vocabulary] of a step in `dtype`: bfloat16, or float32 as the truth.

        `margins` gets, for each layer with experts, by how much the last chosen expert's score
        leads the next one's, in deviations of the scores: [rows].
        """
        config, weights = self.config, self._weights
        x = weights["model.embed_tokens.weight"][self.tokens].to(dtype)
        for number, kind in enumerate(self._kinds):
            prefix = f"model.layers.{number}."
            own = {n[len(prefix) :]: w for n, w in weights.items() if n.startswith(prefix)}
            angles = (self._cos, self._sin) if kind.rotated else None
            k, v = self._caches[number]
            place = self.context - 1
            x = (layer or _layer)(x, own, k, v, angles, config, kind, place, form, margins)
        return (ends or _ends)(x, weights["model.norm.weight"], weights[config.table], config)


def _norm(x: Any, w: Any, config: DecoderConfig) -> Any:
    import torch.nn.functional as F

    wide = x.float()
    if getattr(config, "mean", False):
        return F.layer_norm(wide, wide.shape[-1:], w, None, config.norm_eps).to(x.dtype)
    return F.rms_norm(wide, wide.shape[-1:], w, config.norm_eps).to(x.dtype)


def _ends(x: Any, norm: Any, table: Any, config: DecoderConfig) -> Any:
    h = _norm(x, norm, config)
    if h.dtype == table.dtype:
        return h @ table.T
    return _wide_product(h, table)


def _wide_product(h: Any, w: Any) -> Any:
    """h w^T in h's type, a part of the rows at a time."""
    import torch

    return torch.cat([h @ part.to(h.dtype).T for part in w.split(16384)], dim=-1)


def _rotate(x: Any, angles: Any, pairs: bool) -> Any:
    """Of [rows, heads, head_dim]; `pairs` as in `Kind`."""
    import torch

    cos, sin = angles
    wide = x.float()
    a, b = (wide[..., 0::2], wide[..., 1::2]) if pairs else wide.chunk(2, dim=-1)
    turned = a * cos - b * sin, a * sin + b * cos
    both = torch.stack(turned, dim=-1).flatten(-2) if pairs else torch.cat(turned, dim=-1)
    return both.to(x.dtype)


def _layer(
    x: Any, w: Mapping[str, Any], k_cache: Any, v_cache: Any, angles: Any, config: DecoderConfig,
    kind: Kind, position: int, form: str, margins: list[Any] | None,
) -> Any:  # fmt: skip
    import torch

    h = _norm(x, w["input_layernorm.weight"], config)
    a = _attention(h, w, k_cache, v_cache, angles, config, kind, position)
    if not kind.parallel:
        x = x + a
        h = _norm(x, w["post_attention_layernorm.weight"], config)
        return x + (
            _gated(h, w, "mlp") if kind.dense else _experts(h, w, config, form, margins)
        )  # fmt: skip
    if kind.dense:
        return x + a + _gated(h, w, "mlp")
    f = _experts(h, w, config, form, margins)
    if getattr(config, "shared", 0):
        f = f + _gated(h, w, "mlp.shared_experts")
    return torch.add(x + a, f)


def _attention(
    h: Any, w: Mapping[str, Any], k_cache: Any, v_cache: Any, angles: Any, config: DecoderConfig,
    kind: Kind, position: int,
) -> Any:  # fmt: skip
    import torch.nn.functional as F

    rows, dtype = h.shape[0], h.dtype
    q, k, v = (
        (h @ w[f"self_attn.{part}_proj.weight"].to(dtype).T).view(rows, -1, config.head_dim)
        for part in "qkv"
    )
    if "self_attn.q_norm.weight" in w:
        q, k = (
            _norm(part, w[f"self_attn.{name}_norm.weight"], config)
            for part, name in ((q, "q"), (k, "k"))
        )
    if angles is not None:
        q, k = _rotate(q, angles, kind.pairs), _rotate(k, angles, kind.pairs)
    if dtype == k_cache.dtype:
        k_cache[:, :, position] = k
        v_cache[:, :, position] = v
        keys, values = k_cache, v_cache
    else:
        keys, values = k_cache.to(dtype), v_cache.to(dtype)
        keys[:, :, position], values[:, :, position] = k, v
    if kind.window:
        keys, values = keys[:, :, -kind.window :], values[:, :, -kind.window :]
    a = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, enable_gqa=True)
    return a.reshape(rows, -1) @ w["self_attn.o_proj.weight"].to(dtype).T


def _gated(h: Any, w: Mapping[str, Any], prefix: str) -> Any:
    import torch.nn.functional as F

    gate, up, down = (
        w[f"{prefix}.{part}_proj.weight"].to(h.dtype) for part in ("gate", "up", "down")
    )
    return (F.silu(h @ gate.T) * (h @ up.T)) @ down.T


def _experts(
    h: Any, w: Mapping[str, Any], config: Any, form: str, margins: list[Any] | None
) -> Any:
    import torch
    import torch.nn.functional as F

    e = config.experts
    scores = (h @ w["mlp.gate.weight"].to(h.dtype).T).float()
    if margins is not None:
        best = scores.topk(e.top + 1, dim=-1).values
        margins.append((best[:, -2] - best[:, -1]) / scores.std(-1))
    top, ids = scores.topk(e.top, dim=-1)  # [rows, top]
    chosen = torch.softmax(scores, -1).gather(-1, ids) if e.softmax else torch.sigmoid(top)
    if e.renormalise:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    chosen = (chosen * e.scale).to(h.dtype)
    both, down = w["mlp.experts.gate_up_proj"], w["mlp.experts.down_proj"]
    if h.dtype != both.dtype:  # the truth: one expert at a time
        out = torch.zeros_like(h)
        for row in range(h.shape[0]):
            for weight, expert in zip(chosen[row], ids[row].tolist(), strict=True):
                gate, up = (both[expert].to(h.dtype) @ h[row]).chunk(2)
                out[row] += weight * (down[expert].to(h.dtype) @ (F.silu(gate) * up))
        return out
    if form == "gathered":
        gate, up = (both[ids] * h[:, None, None, :]).sum(-1).chunk(2, dim=-1)  # [rows, top, ffn]
        y = (down[ids] * (F.silu(gate) * up)[:, :, None, :]).sum(-1)  # [rows, top, hidden]
        return (y * chosen[:, :, None]).sum(1)
    order = ids.flatten().argsort(stable=True)
    token = order // e.top
    experts = torch.arange(e.experts, device=h.device)
    ends = (ids.flatten()[:, None] == experts).sum(0).cumsum(0).to(torch.int32)
    gate, up = torch._grouped_mm(h[token], both.transpose(1, 2), offs=ends).chunk(2, dim=-1)
    y = torch._grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
    y = y * chosen.flatten()[order][:, None]
    return torch.zeros_like(h).index_add_(0, token, y)
