"""The tensors that families have in common, by name and shape, and how a checkpoint that holds a
layer's experts one by one maps onto the stacked tensors that a step reads."""

from collections.abc import Mapping

import numpy as np

from mkport.models.base import DecoderConfig

Shapes = dict[str, tuple[int, ...]]
# Where in a step's tensor a published one belongs: empty where it is the same, renamed.
Index = tuple[int | slice, ...]
Pieces = Mapping[str, Mapping[str, Index]]  # a step's tensor -> its published tensors


def attention_shapes(config: DecoderConfig, block: str, head_norms: bool = False) -> Shapes:
    """The projections of one layer's attention: names under `block`, shapes [outputs, inputs].

    With `head_norms` also the norms of single heads of queries and keys, [head_dim] each.
    """
    attention, hidden = f"{block}.self_attn", config.hidden
    shapes: Shapes = {
        f"{attention}.q_proj.weight": (config.q_width, hidden),
        f"{attention}.k_proj.weight": (config.kv_width, hidden),
        f"{attention}.v_proj.weight": (config.kv_width, hidden),
        f"{attention}.o_proj.weight": (hidden, config.q_width),
    }
    if head_norms:
        shapes |= {f"{attention}.{part}_norm.weight": (config.head_dim,) for part in ("q", "k")}
    return shapes


def gated_shapes(prefix: str, hidden: int, ffn: int) -> Shapes:
    """A gated feed-forward: gate and up [ffn, hidden], down [hidden, ffn]."""
    return {
        f"{prefix}.gate_proj.weight": (ffn, hidden),
        f"{prefix}.up_proj.weight": (ffn, hidden),
        f"{prefix}.down_proj.weight": (hidden, ffn),
    }


def expert_shapes(prefix: str, experts: int, hidden: int, ffn: int) -> Shapes:
    """A router [experts, hidden] and its experts, stacked: gate rows, then up rows of each expert
    [experts, 2 * ffn, hidden], and down [experts, hidden, ffn]."""
    return {
        f"{prefix}.gate.weight": (experts, hidden),
        f"{prefix}.experts.gate_up_proj": (experts, 2 * ffn, hidden),
        f"{prefix}.experts.down_proj": (experts, hidden, ffn),
    }


def expert_pieces(
    prefix: str,
    experts: int,
    ffn: int,
    published: str | None = None,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> dict[str, dict[str, Index]]:
    """The stacked tensors of `expert_shapes` by the tensors of single experts.

    `published` is the prefix that these have, and `names` what gate, up and down are called.
    """
    block = published or prefix
    gate, up, down = names
    pieces: dict[str, dict[str, Index]] = {
        f"{prefix}.experts.gate_up_proj": {},
        f"{prefix}.experts.down_proj": {},
    }
    for e in range(experts):
        expert = f"{block}.experts.{e}"
        pieces[f"{prefix}.experts.gate_up_proj"] |= {
            f"{expert}.{gate}.weight": (e, slice(0, ffn)),
            f"{expert}.{up}.weight": (e, slice(ffn, 2 * ffn)),
        }
        pieces[f"{prefix}.experts.down_proj"][f"{expert}.{down}.weight"] = (e,)
    if block != prefix:
        pieces[f"{prefix}.gate.weight"] = {f"{block}.gate.weight": ()}
    return pieces


def piece_shapes(whole: tuple[int, ...], pieces: Mapping[str, Index]) -> Shapes:
    """The shapes of the published tensors that make up one of the step's."""
    indexed = np.broadcast_to(np.float32(), whole)  # holds no elements, only to be indexed
    return {name: indexed[place].shape for name, place in pieces.items()}


def outer_shapes(config: DecoderConfig) -> Shapes:
    """The embedding [vocab, hidden], the last norm [hidden] and, where it is a tensor of its own,
    the LM head [vocab, hidden]."""
    table = (config.vocab, config.hidden)
    shapes: Shapes = {"model.embed_tokens.weight": table, "model.norm.weight": (config.hidden,)}
    return shapes if config.tied else shapes | {"lm_head.weight": table}


def ignored_shapes(config: DecoderConfig) -> Shapes:
    """Tensors a checkpoint may hold without being read, as in transformers: a tied LM head (the
    embedding again) and the rotary frequencies that old files carry (the config gives them)."""
    shapes: Shapes = {
        f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": (config.head_dim // 2,)
        for layer in range(config.layers)
    }
    return shapes | ({"lm_head.weight": (config.vocab, config.hidden)} if config.tied else {})
