"""The Cohere families, dense (`cohere2`) and with experts (`cohere2_moe`): parallel blocks, rotary
pairs side by side, sliding windows with every few layers full and without positions.

Source: Cohere, "Command A" technical report, 2025; transformers' modeling_cohere2.py and, for
mixtures, modeling_cohere2_moe.py.
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
    choice,
    flag,
    layer_kinds,
    natural,
    positive,
    refuse_unknown,
    whole,
)
from mkport.models.step import Heads, Input, Norm, Step, StepShape
from mkport.models.tensors import (
    Pieces,
    Shapes,
    attention_shapes,
    expert_pieces,
    expert_shapes,
    gated_shapes,
    ignored_shapes,
    outer_shapes,
)
from mkport.plan import Graph

__all__ = ["CONFIG", "build", "ignored_shapes", "pieces", "rope_table", "scales", "tensor_shapes"]

DENSE, MOE = "cohere2", "cohere2_moe"

_SHARED = COMMON | {
    "layer_norm_eps",
    "layer_types",
    "logit_scale",
    "sliding_window",
    "sliding_window_pattern",
}
_MOE_FIELDS = _SHARED | {
    "expert_selection_fn",
    "first_k_dense_replace",
    "mlp_layer_types",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
    "num_shared_experts",
    "prefix_dense_intermediate_size",
    "prefix_dense_sliding_window_pattern",
    "rms_norm_eps",
    "shared_expert_combination_strategy",
}

_FIXED = FIXED | {
    "cache_implementation": ("hybrid", None),
    "output_router_logits": (False, None),
    "position_embedding_type": ("rope_gptj", None),
    "rotary_pct": (1.0, None),
    "tie_word_embeddings": (True, None),
    "use_embedding_sharing": (True, None),
    "use_gated_activation": (True, None),
    "use_parallel_block": (True, None),
    "use_parallel_embedding": (False, None),
    "use_qk_norm": (False, None),
}
# Says again, for the dense family, what `sliding_window_pattern` and `layer_types` say.
_DENSE_FIXED = {
    "order_of_interleaved_layers": ("local_attn_first", None),
}


@dataclass(frozen=True, kw_only=True)
class CohereConfig(DecoderConfig):
    """A Cohere checkpoint's shape; `ffn` is an expert's width, or a dense model's."""

    mean: bool  # LayerNorm, else RMSNorm
    logit_scale: float
    windows: tuple[int, ...]  # of each layer, in keys; 0: all
    rotated: tuple[bool, ...]  # whether each layer has positions
    dense: tuple[int, ...]  # width of each layer's dense feed-forward; 0: experts
    experts: Experts | None = None
    shared: int = 0  # width of the experts that every token has; 0: none
    average: bool = False  # chosen and shared experts are averaged, else added

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "CohereConfig":
        """Read a Hugging Face config.json; absent fields take transformers' defaults.

        Raises UserError naming the field when it is unknown, missing, malformed or asks for
        something that is not implemented.
        """
        moe = config.get("model_type") == MOE
        if moe:
            refuse_unknown(config, _MOE_FIELDS, _FIXED, MOE)
        else:
            refuse_unknown(config, _SHARED | {"layer_switch"}, _FIXED | _DENSE_FIXED, DENSE)
        root = moe and config.get("rms_norm_eps") is not None
        eps = ("rms_norm_eps", 1e-5) if root else ("layer_norm_eps", 1e-5)
        common = common_fields(
            config,
            kv_heads=None,
            head_dim=128 if moe else None,
            context=8192,
            tied=True,
            eps=eps,
        )
        layers = common["layers"]
        dense = _dense_layers(config, layers, common["ffn"]) if moe else (common["ffn"],) * layers
        kinds = _attention_kinds(config, layers, moe)
        window = 0
        if SLIDING in kinds:
            window = whole(config, "sliding_window", 4096)
        # experts-style checkpoints may rotate their dense first layers although these are full
        forced = moe and whole(config, "prefix_dense_sliding_window_pattern", 1) == 1
        return cls(
            **common,
            model_type=MOE if moe else DENSE,
            mean=not root,
            logit_scale=positive(config, "logit_scale", 0.0625),
            windows=tuple(window if kind == SLIDING else 0 for kind in kinds),
            rotated=tuple(
                kind == SLIDING or (forced and bool(width))
                for kind, width in zip(kinds, dense, strict=True)
            ),
            dense=dense,
            **(_experts(config, common["ffn"]) if moe else {}),
        )


def _attention_kinds(config: Mapping[str, Any], layers: int, moe: bool) -> tuple[str, ...]:
    """Each layer's kind of attention; dense first layers may follow a pattern of their own."""
    pattern = whole(config, "sliding_window_pattern", 4)
    if not moe and whole(config, "layer_switch", pattern) != pattern:
        raise UserError(
            f"config.json: layer_switch = {config['layer_switch']} and sliding_window_pattern = "
            f"{pattern} disagree. Remove the one that is wrong."
        )
    first = natural(config, "first_k_dense_replace", 0) if moe else 0
    prefix = whole(config, "prefix_dense_sliding_window_pattern", 1)
    places = [(i + 1, prefix) for i in range(min(first, layers))]
    places += [(i + 1, pattern) for i in range(layers - len(places))]
    default = tuple(FULL if place % step == 0 else SLIDING for place, step in places)
    return layer_kinds(config, "layer_types", layers, (FULL, SLIDING), default)


def _dense_layers(config: Mapping[str, Any], layers: int, ffn: int) -> tuple[int, ...]:
    """The width of each layer's dense feed-forward; 0 where it has experts."""
    first = natural(config, "first_k_dense_replace", 0)
    default = tuple("dense" if i < first else "sparse" for i in range(layers))
    kinds = layer_kinds(config, "mlp_layer_types", layers, ("dense", "sparse"), default)
    if config.get("first_k_dense_replace") is not None and kinds != default:
        raise UserError(
            f"config.json: first_k_dense_replace = {first} and mlp_layer_types disagree. Remove "
            f"the one that is wrong."
        )
    width = 0
    if "dense" in kinds:
        # the class falls back on the experts' width where no width is given
        width = whole(config, "prefix_dense_intermediate_size", ffn, multiple_of=VECTOR)
    return tuple(width if kind == "dense" else 0 for kind in kinds)


def _experts(config: Mapping[str, Any], ffn: int) -> dict[str, Any]:
    """The fields that only a model with experts has."""
    scores = choice(config, "expert_selection_fn", ("softmax", "sigmoid"), "softmax")
    strategy = choice(config, "shared_expert_combination_strategy", ("average", "sum"), "average")
    count, top = whole(config, "num_experts", 8), whole(config, "num_experts_per_tok", 2)
    shared = natural(config, "num_shared_experts", 0)
    average = bool(shared) and strategy == "average"
    mixture = Experts(
        experts=count,
        top=top,
        ffn=ffn,
        softmax=scores == "softmax",
        # a softmax over the chosen logits is one over all, divided by the sum of the chosen
        renormalise=scores == "softmax" or flag(config, "norm_topk_prob", True),
        scale=0.5 if average else 1.0,
    )
    return {"experts": mixture.checked(), "shared": shared * ffn, "average": average}


def tensor_shapes(config: CohereConfig) -> Shapes:
    """Every tensor a step reads, experts stacked, with its shape."""
    shapes = outer_shapes(config)
    for layer, dense in enumerate(config.dense):
        block, hidden = f"model.layers.{layer}", config.hidden
        shapes |= {f"{block}.input_layernorm.weight": (hidden,)} | attention_shapes(config, block)
        if dense:
            shapes |= gated_shapes(f"{block}.mlp", hidden, dense)
        elif config.experts is not None:
            shapes |= expert_shapes(f"{block}.mlp", config.experts.experts, hidden, config.ffn)
            if config.shared:
                shapes |= gated_shapes(f"{block}.mlp.shared_experts", hidden, config.shared)
    return shapes


def pieces(config: CohereConfig) -> Pieces:
    """The stacked experts by the tensors of single ones."""
    found: dict[str, Any] = {}
    for layer, dense in enumerate(config.dense):
        if config.experts is not None and not dense:
            prefix = f"model.layers.{layer}.mlp"
            found |= expert_pieces(prefix, config.experts.experts, config.ffn)
    return found


def scales(config: CohereConfig) -> dict[str, float]:
    """The logits' factor goes into the last norm's weight; half of an average into the shared
    experts' last product (the other half is a factor of the chosen experts' weights)."""
    found = {"model.norm.weight": config.logit_scale} if config.logit_scale != 1 else {}
    for layer, dense in enumerate(config.dense):
        if config.average and not dense:
            found[f"model.layers.{layer}.mlp.shared_experts.down_proj.weight"] = 0.5
    return found


def build(config: CohereConfig, shape: StepShape) -> Graph:
    """The step graph: one norm feeds attention and feed-forward, and both are added to x."""
    step, norm = Step(shape, config.hidden), Norm(config.norm_eps, config.mean)
    step.embed("model.embed_tokens.weight", config.vocab)
    left: Input | None = None  # a layer's input, normed by the layer before
    for layer, dense in enumerate(config.dense):
        block, label = f"model.layers.{layer}", f"layer {layer}"
        heads = Heads(
            config.heads,
            config.kv_heads,
            config.head_dim,
            rope=config.rotated[layer],
            half_split=False,
            window=config.windows[layer],
        )
        h = left or step.norm(f"{label} / norm", f"{block}.input_layernorm.weight", norm)
        left = None
        o_proj = f"{block}.self_attn.o_proj.weight"
        if dense or config.experts is None:
            step.project(layer, h, f"{block}.self_attn", heads)
            step.attend(layer, heads)
            a = step.join_splits(layer, heads)
            step.add_product(f"{label} / o_proj", a, o_proj, config.q_width)
            step.gated(layer, h, f"{block}.mlp", dense)
        else:
            last = bool(config.shared) or layer + 1 == config.layers
            left = _mixed(step, layer, h, heads, config.experts, None if last else norm)
            if config.shared:
                step.gated(layer, h, f"{block}.mlp.shared_experts", config.shared)
    return step.head("model.norm.weight", norm, config.table, config.vocab, apart=True)


def _mixed(
    step: Step, layer: int, h: Input, heads: Heads, mixture: Experts, norm: Norm | None
) -> Input | None:
    """Attention and experts of a layer, both of h; returns as `experts.combine`.

    What one worker does alone (the choice of experts, the join of the splits) stands before
    something that all the others have to do meanwhile (attention, the experts' second half, or a
    part of the first). In a wide step some workers have attention's product before the second half,
    beside the others.
    """
    block = f"model.layers.{layer}"
    mlp, attention = f"{block}.mlp", f"{block}.self_attn"
    experts.score(step, layer, h, mlp, mixture)
    step.project(layer, h, attention, heads)
    experts.choose(step, layer, mixture)
    step.attend(layer, heads)
    first, *others = parts = experts.parts(step, mixture)
    experts.up(step, layer, h, mlp, mixture, first)
    a = step.join_splits(layer, heads)
    for part in others:
        experts.up(step, layer, h, mlp, mixture, part)
    weight, width = f"{attention}.o_proj.weight", heads.heads * heads.head_dim
    o_proj = (f"layer {layer} / o_proj", a, weight, width)
    more = step.hidden_product(*o_proj) if step.shape.slot_pairs else None
    for part in parts:
        experts.down(step, layer, mlp, mixture, part)
    return experts.combine(step, layer, mixture, norm, more or step.hidden_product(*o_proj))


CONFIG = CohereConfig  # the name under which every family offers its config class
