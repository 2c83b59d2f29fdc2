"""The Llama family: what its config.json means, its tensors and its rotary table. Reading files is
the engine's business; the arithmetic is the ops'."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mkport.errors import UserError
from mkport.models import rope
from mkport.models.fields import flag, positive, refuse_unknown, token_ids, whole
from mkport.models.step import Heads, Step, StepShape
from mkport.plan import Graph

MODEL_TYPE = "llama"

# Rows are read in vectors of this many elements, so these dimensions must be multiples of it.
VECTOR = 16

_IMPLEMENTED = frozenset(
    {
        "head_dim",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "tie_word_embeddings",
        "vocab_size",
    }
)

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


@dataclass(frozen=True)
class LlamaConfig:
    """A Llama checkpoint's shape. Widths are in elements, `context` is in positions."""

    hidden: int
    layers: int
    heads: int  # query heads
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    norm_eps: float
    rope_theta: float
    rope_scaling: rope.RopeScaling | None
    context: int
    tied: bool  # the LM head is the embedding matrix
    eos_ids: tuple[int, ...]
    bos_id: int | None
    model_type: str = MODEL_TYPE

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "LlamaConfig":
        """Read a Hugging Face config.json; absent fields take transformers' defaults.

        Raises UserError naming the field when it is unknown, missing, malformed or asks for
        something that is not implemented.
        """
        refuse_unknown(config, _IMPLEMENTED, _FIXED, MODEL_TYPE)
        hidden = whole(config, "hidden_size", multiple_of=VECTOR)
        heads = whole(config, "num_attention_heads")
        kv_heads = whole(config, "num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise UserError(
                f"config.json: num_attention_heads = {heads} must be a multiple of "
                f"num_key_value_heads = {kv_heads}."
            )
        if config.get("head_dim") is None and hidden % heads:
            raise UserError(
                f"config.json: hidden_size = {hidden} is not a multiple of num_attention_heads = "
                f"{heads}, and no head_dim is given. Add head_dim."
            )
        context = whole(config, "max_position_embeddings", default=2048)
        theta, scaling = rope.parse_rope(config, context)
        bos = token_ids(config, "bos_token_id")
        return cls(
            hidden=hidden,
            layers=whole(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=whole(config, "head_dim", default=max(hidden // heads, 1), multiple_of=VECTOR),
            ffn=whole(config, "intermediate_size", multiple_of=VECTOR),
            vocab=whole(config, "vocab_size"),
            norm_eps=positive(config, "rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            context=context,
            tied=flag(config, "tie_word_embeddings", False),
            eos_ids=token_ids(config, "eos_token_id"),
            bos_id=bos[0] if bos else None,
        )


def rope_table(config: LlamaConfig, positions: int) -> np.ndarray:
    """Float32 [positions, head_dim]: head_dim / 2 cosines, then head_dim / 2 sines."""
    inverse = rope.inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    return rope.rope_table(inverse, positions)


def tensor_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a checkpoint must hold, by its Hugging Face name, with its shape."""
    hidden, ffn = config.hidden, config.ffn
    q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab, hidden)}
    for layer in range(config.layers):
        block = f"model.layers.{layer}"
        shapes |= {
            f"{block}.input_layernorm.weight": (hidden,),
            f"{block}.self_attn.q_proj.weight": (q_width, hidden),
            f"{block}.self_attn.k_proj.weight": (kv_width, hidden),
            f"{block}.self_attn.v_proj.weight": (kv_width, hidden),
            f"{block}.self_attn.o_proj.weight": (hidden, q_width),
            f"{block}.post_attention_layernorm.weight": (hidden,),
            f"{block}.mlp.gate_proj.weight": (ffn, hidden),
            f"{block}.mlp.up_proj.weight": (ffn, hidden),
            f"{block}.mlp.down_proj.weight": (hidden, ffn),
        }
    shapes["model.norm.weight"] = (hidden,)
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab, hidden)
    return shapes


def ignored_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a checkpoint may hold without being read, as in transformers: a tied LM head (the
    embedding again) and the rotary frequencies that old files carry (the config gives them)."""
    shapes: dict[str, tuple[int, ...]] = {
        f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": (config.head_dim // 2,)
        for layer in range(config.layers)
    }
    if config.tied:
        shapes["lm_head.weight"] = (config.vocab, config.hidden)
    return shapes


def build(config: LlamaConfig, shape: StepShape) -> Graph:
    """The step graph: sequential blocks, attention then the gated feed-forward."""
    step = Step(shape, config.hidden)
    heads = Heads(config.heads, config.kv_heads, config.head_dim)
    step.embed("model.embed_tokens.weight", config.vocab)
    for layer in range(config.layers):
        block, label = f"model.layers.{layer}", f"layer {layer}"
        h = step.rmsnorm(f"{label} / norm", f"{block}.input_layernorm.weight", config.norm_eps)
        a = step.attention(layer, h, f"{block}.self_attn", heads)
        width = config.heads * config.head_dim
        step.add_product(f"{label} / o_proj", a, f"{block}.self_attn.o_proj.weight", width)
        norm = f"{block}.post_attention_layernorm.weight"
        h = step.rmsnorm(f"{label} / ffn_norm", norm, config.norm_eps)
        step.gated(layer, h, f"{block}.mlp", config.ffn)
    table = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    return step.head("model.norm.weight", config.norm_eps, table, config.vocab)


CONFIG = LlamaConfig  # the name under which every family offers its config class
