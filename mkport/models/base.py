"""What every decoder family shares: the sizes of its attention, its rotary table, its head. What a
family adds (norms, windows, experts) stands in the family's own module."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mkport.errors import UserError
from mkport.models import rope
from mkport.models.fields import flag, positive, token_ids, whole

# Rows are read in vectors of this many elements, so these dimensions must be multiples of it.
VECTOR = 16
MAX_LAYERS = 10_000  # far beyond any model; a table of names is made of them

COMMON = frozenset(
    {
        "head_dim",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "tie_word_embeddings",
        "vocab_size",
    }
)

# What a decoder's config may say only in these ways, whatever its family.
FIXED: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "attention_dropout": (0.0, None),
    "hidden_act": ("silu",),
    "partial_rotary_factor": (1.0, None),
}


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder's shape. Widths are in elements, `context` is in positions."""

    hidden: int
    layers: int
    heads: int  # query heads
    kv_heads: int
    head_dim: int
    ffn: int  # width of the feed-forward, or of one expert
    vocab: int
    norm_eps: float
    rope_theta: float
    rope_scaling: rope.RopeScaling | None
    context: int
    tied: bool  # the LM head is the embedding matrix
    eos_ids: tuple[int, ...]
    bos_id: int | None
    model_type: str

    @property
    def q_width(self) -> int:
        """Columns of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of all key, or value, heads."""
        return self.kv_heads * self.head_dim

    @property
    def table(self) -> str:
        """The tensor that the LM head multiplies with."""
        return "model.embed_tokens.weight" if self.tied else "lm_head.weight"


def common_fields(
    config: Mapping[str, Any],
    *,
    kv_heads: int | None,
    head_dim: int | None,
    context: int,
    tied: bool,
    eps: tuple[str, float] = ("rms_norm_eps", 1e-6),
    ffn: tuple[str, int | None] = ("intermediate_size", None),
    theta: float = rope.DEFAULT_THETA,
) -> dict[str, Any]:
    """The fields of `DecoderConfig`, read from a config.json; the arguments are what the family's
    class in transformers takes where a field is absent (None: derived from the other fields);
    `context` is in positions.

    Raises UserError naming the field that is missing, malformed or of a size that is not
    implemented.
    """
    hidden = whole(config, "hidden_size", multiple_of=VECTOR)
    heads = whole(config, "num_attention_heads")
    kv = whole(config, "num_key_value_heads", default=kv_heads or heads)
    if heads % kv:
        raise UserError(
            f"config.json: num_attention_heads = {heads} must be a multiple of "
            f"num_key_value_heads = {kv}."
        )
    if config.get("head_dim") is None and head_dim is None and hidden % heads:
        raise UserError(
            f"config.json: hidden_size = {hidden} is not a multiple of num_attention_heads = "
            f"{heads}, and no head_dim is given. Add head_dim."
        )
    width = head_dim or max(hidden // heads, 1)
    positions = whole(config, "max_position_embeddings", default=context)
    rope_theta, scaling = rope.parse_rope(config, positions, theta)
    bos = token_ids(config, "bos_token_id")
    return {
        "hidden": hidden,
        "layers": whole(config, "num_hidden_layers", at_most=MAX_LAYERS),
        "heads": heads,
        "kv_heads": kv,
        "head_dim": whole(config, "head_dim", default=width, multiple_of=VECTOR),
        "ffn": whole(config, ffn[0], default=ffn[1], multiple_of=VECTOR),
        "vocab": whole(config, "vocab_size"),
        "norm_eps": positive(config, *eps),
        "rope_theta": rope_theta,
        "rope_scaling": scaling,
        "context": positions,
        "tied": flag(config, "tie_word_embeddings", tied),
        "eos_ids": token_ids(config, "eos_token_id"),
        "bos_id": bos[0] if bos else None,
    }


def rope_table(config: DecoderConfig, positions: int) -> np.ndarray:
    """Float32 [positions, head_dim]: head_dim / 2 cosines, then head_dim / 2 sines, as `rope.py`'s
    function of the same name makes them."""
    inverse = rope.inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    return rope.rope_table(inverse, positions)
