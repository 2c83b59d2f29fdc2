"""One layer of each family, out of the formulas. Written from the models' papers and not from the
step graphs, so that the two can disagree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mkport.declare.case import from_bf16, to_bf16
from mkport.models import cohere2, llama, mixtral, qwen3
from mkport.models.base import DecoderConfig, rope_table
from mkport.models.experts import Experts
from mkport.testing.reference import formulas

Choices = dict[str, np.ndarray]  # experts int [tokens, top] by the layer's prefix


@dataclass(frozen=True)
class Model:
    """A model's weights in the type of the arithmetic, for a sequence of `tokens`."""

    config: DecoderConfig
    weights: Mapping[str, np.ndarray]
    tokens: int
    kind: type[np.floating]
    cache: str  # storage of keys and values: "bf16" or "f32"
    chosen: Choices  # filled by the layers that are not in it yet

    def weight(self, name: str, part: int | slice = slice(None)) -> np.ndarray:
        """A tensor in its shape, or a part of its first dimension, in the type `kind`."""
        array = self.weights[name][part]
        return (from_bf16(array) if array.dtype == np.uint16 else array).astype(self.kind)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """The family's norm over the last dimension of x, which may have any shape and keeps it."""
        mean = isinstance(self.config, cohere2.CohereConfig) and self.config.mean
        norm = formulas.layer_norm if mean else formulas.rms_norm
        return norm(x, self.weight(name), self.config.norm_eps)

    def stored(self, x: np.ndarray) -> np.ndarray:
        """What comes back out of the cache of x, which may have any shape and keeps it."""
        return from_bf16(to_bf16(x)).astype(x.dtype) if self.cache == "bf16" else x

    def attention(
        self,
        h: np.ndarray,
        block: str,
        window: int = 0,
        rotated: bool = True,
        half_split: bool = True,
        head_norms: bool = False,
    ) -> np.ndarray:
        """Attention of h [tokens, hidden] with its last product: [tokens, hidden]. Of a `window`
        above 0 a token sees as many positions; `half_split` is `formulas.rotate`'s."""
        table = rope_table(self.config, self.tokens).astype(self.kind)

        def projected(part: str) -> np.ndarray:
            y = h @ self.weight(f"{block}.self_attn.{part}_proj.weight").T
            y = y.reshape(self.tokens, -1, self.config.head_dim)  # [tokens, heads, head_dim]
            if head_norms and part != "v":
                y = self.norm(y, f"{block}.self_attn.{part}_norm.weight")
            return formulas.rotate(y, table, half_split) if rotated and part != "v" else y

        k, v = (self.stored(projected(part)) for part in "kv")
        a = formulas.attention(projected("q"), k, v, window)
        return a @ self.weight(f"{block}.self_attn.o_proj.weight").T

    def gated(self, h: np.ndarray, prefix: str) -> np.ndarray:
        """The gated feed-forward of h [tokens, hidden], with the weights under `prefix`."""
        parts = (self.weight(f"{prefix}.{part}_proj.weight") for part in ("gate", "up", "down"))
        return formulas.gated(h, *parts)

    def mixture(self, h: np.ndarray, prefix: str, e: Experts) -> np.ndarray:
        """The weighted sum of each token's chosen experts: h [tokens, hidden] -> the same shape."""
        z = h @ self.weight(f"{prefix}.gate.weight").T
        ids = self.chosen.setdefault(prefix, formulas.top(z, e))
        shares = formulas.shares(z, ids, e)
        out = np.zeros_like(h)
        for expert in np.unique(ids):
            gate, up = np.split(self.weight(f"{prefix}.experts.gate_up_proj", int(expert)), 2)
            down = self.weight(f"{prefix}.experts.down_proj", int(expert))
            token, choice = np.nonzero(ids == expert)
            out[token] += shares[token, choice, None] * formulas.gated(h[token], gate, up, down)
        return out


def sequential(model: Model, layer: int, x: np.ndarray) -> np.ndarray:
    """A layer in which attention is added before the feed-forward reads: x [tokens, hidden] -> the
    same shape.

    Source: Llama (Touvron et al. 2023), Mixtral (Jiang et al. 2024), Qwen3 (Yang et al. 2025).
    """
    config, block = model.config, f"model.layers.{layer}"
    window, experts, head_norms = 0, None, False
    if isinstance(config, mixtral.MixtralConfig):
        window, experts = config.window, config.experts
    elif isinstance(config, qwen3.QwenConfig):
        window, head_norms = config.windows[layer], True
        experts = config.experts if config.sparse[layer] else None
    h = model.norm(x, f"{block}.input_layernorm.weight")
    x = x + model.attention(h, block, window, head_norms=head_norms)
    h = model.norm(x, f"{block}.post_attention_layernorm.weight")
    if experts is None:
        return x + model.gated(h, f"{block}.mlp")
    return x + model.mixture(h, f"{block}.mlp", experts)


def parallel(model: Model, layer: int, x: np.ndarray) -> np.ndarray:
    """A layer in which attention and feed-forward read the same norm, and which may do without
    positions: x [tokens, hidden] -> the same shape. Source: Command A technical report (2025)."""
    config, block = model.config, f"model.layers.{layer}"
    assert isinstance(config, cohere2.CohereConfig)
    h = model.norm(x, f"{block}.input_layernorm.weight")
    window, rotated = config.windows[layer], config.rotated[layer]
    x = x + model.attention(h, block, window, rotated, half_split=False)
    if config.dense[layer] or config.experts is None:
        return x + model.gated(h, f"{block}.mlp")
    x = x + model.mixture(h, f"{block}.mlp", config.experts)
    return x + model.gated(h, f"{block}.mlp.shared_experts") if config.shared else x


BLOCKS: Mapping[str, Callable[[Model, int, np.ndarray], np.ndarray]] = {
    cohere2.DENSE: parallel,
    cohere2.MOE: parallel,
    llama.MODEL_TYPE: sequential,
    mixtral.MODEL_TYPE: sequential,
    qwen3.DENSE: sequential,
    qwen3.MOE: sequential,
}
