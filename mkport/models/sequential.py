"""What the families share whose layers add attention to the residual stream before the feed-forward
reads it: the tensors and nodes of a layer's first half. The second half is the family's."""

from mkport.models.base import DecoderConfig
from mkport.models.step import Heads, Input, Norm, Step
from mkport.models.tensors import Shapes, attention_shapes


def first_half_shapes(config: DecoderConfig, block: str, head_norms: bool = False) -> Shapes:
    """Attention's tensors and both norms of the layer whose names begin with `block`."""
    return {
        f"{block}.input_layernorm.weight": (config.hidden,),
        **attention_shapes(config, block, head_norms),
        f"{block}.post_attention_layernorm.weight": (config.hidden,),
    }


def first_half(
    step: Step,
    layer: int,
    heads: Heads,
    norm: Norm,
    h: Input | None = None,
) -> Input:
    """x += attention of the normed x; returns the feed-forward's input, [rows, hidden].

    `h` is the normed x, [rows, hidden], where the layer before has left it.
    """
    block, label = f"model.layers.{layer}", f"layer {layer}"
    h = h or step.normed(f"{label} / norm", f"{block}.input_layernorm.weight", norm)
    a = step.attention(layer, h, f"{block}.self_attn", heads)
    width = heads.heads * heads.head_dim
    step.add_product(f"{label} / o_proj", a, f"{block}.self_attn.o_proj.weight", width)
    return step.normed(f"{label} / ffn_norm", f"{block}.post_attention_layernorm.weight", norm)


def scales(config: DecoderConfig) -> dict[str, float]:
    """Tensors that are multiplied by a number while they are loaded: none."""
    return {}
