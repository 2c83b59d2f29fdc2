"""The Mixtral family: Llama's blocks with experts in every layer, under names of their own.

Source: Jiang et al., "Mixtral of Experts", 2024; transformers' modeling_mixtral.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mkport.models import experts
from mkport.models.base import COMMON, FIXED, DecoderConfig, common_fields, rope_table
from mkport.models.experts import Experts
from mkport.models.fields import either, refuse_unknown, whole
from mkport.models.sequential import first_half, first_half_shapes, scales
from mkport.models.step import Heads, Input, Norm, Step, StepShape
from mkport.models.tensors import (
    Pieces,
    Shapes,
    expert_pieces,
    expert_shapes,
    ignored_shapes,
    outer_shapes,
)
from mkport.plan import Graph

__all__ = ["CONFIG", "build", "ignored_shapes", "pieces", "rope_table", "scales", "tensor_shapes"]

MODEL_TYPE = "mixtral"

_IMPLEMENTED = COMMON | {
    "num_experts",
    "num_experts_per_tok",
    "num_local_experts",
    "rms_norm_eps",
    "sliding_window",
}

_FIXED = FIXED | {"output_router_logits": (False, None)}


@dataclass(frozen=True, kw_only=True)
class MixtralConfig(DecoderConfig):
    """A Mixtral checkpoint's shape; `ffn` is the width of an expert."""

    window: int  # keys a query sees; 0: all
    experts: Experts
    model_type: str = MODEL_TYPE

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "MixtralConfig":
        """Read a Hugging Face config.json; absent fields take transformers' defaults.

        Raises UserError naming the field when it is unknown, missing, malformed or asks for
        something that is not implemented.
        """
        refuse_unknown(config, _IMPLEMENTED, _FIXED, MODEL_TYPE)
        common = common_fields(
            config,
            kv_heads=8,
            head_dim=None,
            context=131072,
            tied=False,
            eps=("rms_norm_eps", 1e-5),
            theta=1e6,
        )
        mixture = Experts(
            experts=either(config, "num_experts", "num_local_experts", 8),
            top=whole(config, "num_experts_per_tok", 2),
            ffn=common["ffn"],
            softmax=True,
            renormalise=True,
        )
        windowed = config.get("sliding_window") is not None
        window = whole(config, "sliding_window") if windowed else 0
        return cls(**common, window=window, experts=mixture.checked())


def tensor_shapes(config: MixtralConfig) -> Shapes:
    """Every tensor a step reads, experts stacked, with its shape."""
    shapes = outer_shapes(config)
    for layer in range(config.layers):
        block = f"model.layers.{layer}"
        shapes |= {
            **first_half_shapes(config, block),
            **expert_shapes(f"{block}.mlp", config.experts.experts, config.hidden, config.ffn),
        }
    return shapes


def pieces(config: MixtralConfig) -> Pieces:
    """The stacked experts and the router by the names they were published under."""
    found: dict[str, Any] = {}
    for layer in range(config.layers):
        block = f"model.layers.{layer}"
        published, names = f"{block}.block_sparse_moe", ("w1", "w3", "w2")
        found |= expert_pieces(f"{block}.mlp", config.experts.experts, config.ffn, published, names)
    return found


def build(config: MixtralConfig, shape: StepShape) -> Graph:
    """The step graph: sequential blocks, attention then the experts."""
    step, norm = Step(shape, config.hidden), Norm(config.norm_eps)
    heads = Heads(config.heads, config.kv_heads, config.head_dim, window=config.window)
    step.embed("model.embed_tokens.weight", config.vocab)
    left: Input | None = None  # a layer's input, normed by the layer before
    for layer in range(config.layers):
        h, prefix = first_half(step, layer, heads, norm, left), f"model.layers.{layer}.mlp"
        following = norm if layer + 1 < config.layers else None
        left = experts.add_experts(step, layer, h, prefix, config.experts, following)
    return step.head("model.norm.weight", norm, config.table, config.vocab)


CONFIG = MixtralConfig  # the name under which every family offers its config class
