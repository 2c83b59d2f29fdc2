"""The Qwen3 families, dense (`qwen3`) and with experts (`qwen3_moe`): sequential blocks, and every
head of queries and keys normed before it rotates.

Source: Yang et al., "Qwen3 Technical Report", 2025; transformers' modeling_qwen3.py and
modeling_qwen3_moe.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mkport.errors import UserError
from mkport.models import experts
from mkport.models.base import COMMON, FIXED, VECTOR, DecoderConfig, common_fields, rope_table
from mkport.models.experts import Experts
from mkport.models.fields import (
    FULL,
    SLIDING,
    either,
    flag,
    layer_kinds,
    natural,
    refuse_unknown,
    whole,
)
from mkport.models.sequential import first_half, first_half_shapes, scales
from mkport.models.step import Heads, Input, Norm, Step, StepShape
from mkport.models.tensors import (
    Pieces,
    Shapes,
    expert_pieces,
    expert_shapes,
    gated_shapes,
    ignored_shapes,
    outer_shapes,
)
from mkport.plan import Graph

__all__ = ["CONFIG", "build", "ignored_shapes", "pieces", "rope_table", "scales", "tensor_shapes"]

DENSE, MOE = "qwen3", "qwen3_moe"

_SHARED = COMMON | {"max_window_layers", "rms_norm_eps", "sliding_window", "use_sliding_window"}
_DENSE_FIELDS = _SHARED | {"layer_types"}
_MOE_FIELDS = _SHARED | {
    "decoder_sparse_step",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
    "num_local_experts",
}

_FIXED = FIXED | {"output_router_logits": (False, None)}


@dataclass(frozen=True, kw_only=True)
class QwenConfig(DecoderConfig):
    """A Qwen3 checkpoint's shape; `ffn` is the width of a dense feed-forward."""

    windows: tuple[int, ...]  # of each layer, in keys; 0: all
    sparse: tuple[bool, ...]  # whether each layer has experts
    experts: Experts | None = None

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "QwenConfig":
        """Read a Hugging Face config.json; absent fields take transformers' defaults.

        Raises UserError naming the field when it is unknown, missing, malformed or asks for
        something that is not implemented.
        """
        moe = config.get("model_type") == MOE
        fields = _MOE_FIELDS if moe else _DENSE_FIELDS
        refuse_unknown(config, fields, _FIXED, MOE if moe else DENSE)
        common = common_fields(
            config,
            kv_heads=4 if moe else 32,
            head_dim=None if moe else 128,
            context=32768,
            tied=False,
        )
        layers = common["layers"]
        return cls(
            **common,
            model_type=MOE if moe else DENSE,
            windows=_windows(config, layers, moe),
            sparse=_sparse(config, layers) if moe else (False,) * layers,
            experts=_experts(config) if moe else None,
        )


def _windows(config: Mapping[str, Any], layers: int, moe: bool) -> tuple[int, ...]:
    """Each layer's window in keys; 0: all. With experts it is the same for all layers."""
    first = natural(config, "max_window_layers", 28)
    window = 0
    if flag(config, "use_sliding_window", False) and config.get("sliding_window", 4096) is not None:
        window = whole(config, "sliding_window", 4096)
    if moe:
        return (window,) * layers
    default = tuple(SLIDING if window and i >= first else FULL for i in range(layers))
    kinds = layer_kinds(config, "layer_types", layers, (FULL, SLIDING), default)
    if SLIDING in kinds and not window:
        raise UserError(
            "config.json: layer_types has sliding layers, but use_sliding_window and "
            "sliding_window give no window. Correct one of them."
        )
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def _sparse(config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Whether each layer has experts: every so many layers, less those that are named."""
    step = whole(config, "decoder_sparse_step", 1)
    named = config.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(
        isinstance(i, int) and not isinstance(i, bool) and 0 <= i < layers for i in named
    ):
        raise UserError(f"config.json: mlp_only_layers = {named!r} must be a list of layers.")
    return tuple((i + 1) % step == 0 and i not in named for i in range(layers))


def _experts(config: Mapping[str, Any]) -> Experts:
    return Experts(
        experts=either(config, "num_experts", "num_local_experts", 128),
        top=whole(config, "num_experts_per_tok", 8),
        ffn=whole(config, "moe_intermediate_size", 768, multiple_of=VECTOR),
        softmax=True,
        renormalise=flag(config, "norm_topk_prob", False),
    ).checked()


def tensor_shapes(config: QwenConfig) -> Shapes:
    """Every tensor a step reads, experts stacked, with its shape."""
    shapes, hidden = outer_shapes(config), config.hidden
    for layer, sparse in enumerate(config.sparse):
        block = f"model.layers.{layer}"
        shapes |= first_half_shapes(config, block, head_norms=True)
        if sparse and config.experts is not None:
            shapes |= expert_shapes(
                f"{block}.mlp", config.experts.experts, hidden, config.experts.ffn
            )
        else:
            shapes |= gated_shapes(f"{block}.mlp", hidden, config.ffn)
    return shapes


def pieces(config: QwenConfig) -> Pieces:
    """The stacked experts by the tensors of single ones."""
    found: dict[str, Any] = {}
    for layer, sparse in enumerate(config.sparse):
        if sparse and config.experts is not None:
            prefix = f"model.layers.{layer}.mlp"
            found |= expert_pieces(prefix, config.experts.experts, config.experts.ffn)
    return found


def build(config: QwenConfig, shape: StepShape) -> Graph:
    """The step graph: sequential blocks, attention then the feed-forward or the experts."""
    step, norm = Step(shape, config.hidden), Norm(config.norm_eps)
    step.embed("model.embed_tokens.weight", config.vocab)
    left: Input | None = None  # a layer's input, normed by the layer before
    for layer, sparse in enumerate(config.sparse):
        heads = Heads(
            config.heads,
            config.kv_heads,
            config.head_dim,
            window=config.windows[layer],
            norm_eps=config.norm_eps,
        )
        h, mlp = first_half(step, layer, heads, norm, left), f"model.layers.{layer}.mlp"
        left = None
        if sparse and config.experts is not None:
            following = norm if layer + 1 < config.layers else None
            left = experts.add_experts(step, layer, h, mlp, config.experts, following)
        else:
            step.gated(layer, h, mlp, config.ffn)
    return step.head("model.norm.weight", norm, config.table, config.vocab)


CONFIG = QwenConfig  # the name under which every family offers its config class
