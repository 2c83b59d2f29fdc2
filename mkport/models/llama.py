"""The Llama family: what its config.json means, its tensors and its rotary table. Reading files is
the engine's business; the arithmetic is the ops'."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mkport.models.base import COMMON, DecoderConfig, common_fields, rope_table
from mkport.models.fields import refuse_unknown
from mkport.models.step import Heads, Norm, Step, StepShape
from mkport.models.tensors import (
    Pieces,
    Shapes,
    attention_shapes,
    gated_shapes,
    ignored_shapes,
    outer_shapes,
)
from mkport.plan import Graph

__all__ = ["CONFIG", "build", "ignored_shapes", "pieces", "rope_table", "scales", "tensor_shapes"]

MODEL_TYPE = "llama"

_IMPLEMENTED = COMMON | {"rms_norm_eps"}

_FIXED: Mapping[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "attention_dropout": (0.0, None),
    "hidden_act": ("silu",),
    "is_llama_config": (True,),
    "mlp_bias": (False, None),
    "partial_rotary_factor": (1.0, None),
    "pretraining_tp": (1, None),
    "rope_interleaved": (False, None),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
}


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(DecoderConfig):
    """A Llama checkpoint's shape."""

    model_type: str = MODEL_TYPE

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "LlamaConfig":
        """Read a Hugging Face config.json; absent fields take transformers' defaults.

        Raises UserError naming the field when it is unknown, missing, malformed or asks for
        something that is not implemented.
        """
        refuse_unknown(config, _IMPLEMENTED, _FIXED, MODEL_TYPE)
        return cls(**common_fields(config, kv_heads=None, head_dim=None, context=2048, tied=False))


def tensor_shapes(config: LlamaConfig) -> Shapes:
    """Every tensor a step reads, by its Hugging Face name, with its shape."""
    shapes = outer_shapes(config)
    for layer in range(config.layers):
        block = f"model.layers.{layer}"
        shapes |= {
            f"{block}.input_layernorm.weight": (config.hidden,),
            **attention_shapes(config, block),
            f"{block}.post_attention_layernorm.weight": (config.hidden,),
            **gated_shapes(f"{block}.mlp", config.hidden, config.ffn),
        }
    return shapes


def pieces(config: LlamaConfig) -> Pieces:
    """Tensors that a checkpoint may hold in parts: none."""
    return {}


def scales(config: LlamaConfig) -> dict[str, float]:
    """Tensors that are multiplied by a number while they are loaded: none."""
    return {}


def build(config: LlamaConfig, shape: StepShape) -> Graph:
    """The step graph: sequential blocks, attention then the gated feed-forward."""
    step, norm = Step(shape, config.hidden), Norm(config.norm_eps)
    heads = Heads(config.heads, config.kv_heads, config.head_dim)
    step.embed("model.embed_tokens.weight", config.vocab)
    for layer in range(config.layers):
        block, label = f"model.layers.{layer}", f"layer {layer}"
        h = step.norm(f"{label} / norm", f"{block}.input_layernorm.weight", norm)
        a = step.attention(layer, h, f"{block}.self_attn", heads)
        step.add_product(f"{label} / o_proj", a, f"{block}.self_attn.o_proj.weight", config.q_width)
        h = step.norm(f"{label} / ffn_norm", f"{block}.post_attention_layernorm.weight", norm)
        step.gated(layer, h, f"{block}.mlp", config.ffn)
    return step.head("model.norm.weight", norm, config.table, config.vocab)


CONFIG = LlamaConfig  # the name under which every family offers its config class
