"""The Llama family: what its config.json means, its tensors and its rotary table. Reading files is
the engine's business; the arithmetic is the ops'.

Source: Touvron et al., "LLaMA", 2023; transformers' modeling_llama.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mkport.models.base import COMMON, FIXED, DecoderConfig, common_fields, rope_table
from mkport.models.fields import refuse_unknown
from mkport.models.sequential import first_half, first_half_shapes, scales
from mkport.models.step import Heads, Norm, Step, StepShape
from mkport.models.tensors import Pieces, Shapes, gated_shapes, ignored_shapes, outer_shapes
from mkport.plan import Graph

__all__ = ["CONFIG", "build", "ignored_shapes", "pieces", "rope_table", "scales", "tensor_shapes"]

MODEL_TYPE = "llama"

_IMPLEMENTED = COMMON | {"rms_norm_eps"}

_FIXED = FIXED | {
    "is_llama_config": (True,),
    "mlp_bias": (False, None),
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
            **first_half_shapes(config, block),
            **gated_shapes(f"{block}.mlp", config.hidden, config.ffn),
        }
    return shapes


def pieces(config: LlamaConfig) -> Pieces:
    """Tensors that a checkpoint may hold in parts: none."""
    return {}


def build(config: LlamaConfig, shape: StepShape) -> Graph:
    """The step graph: sequential blocks, attention then the gated feed-forward."""
    step, norm = Step(shape, config.hidden), Norm(config.norm_eps)
    heads = Heads(config.heads, config.kv_heads, config.head_dim)
    step.embed("model.embed_tokens.weight", config.vocab)
    for layer in range(config.layers):
        h = first_half(step, layer, heads, norm)
        step.gated(layer, h, f"model.layers.{layer}.mlp", config.ffn)
    return step.head("model.norm.weight", norm, config.table, config.vocab)


CONFIG = LlamaConfig  # the name under which every family offers its config class
