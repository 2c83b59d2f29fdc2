"""A layer's mixture of experts as nodes of a step: the router, the grouping of tokens, the experts'
two halves, and the sum. A family may put other nodes between them; what differs is an argument."""

from dataclasses import dataclass
from typing import Any

from mkport.declare import spread_step
from mkport.errors import UserError
from mkport.kernels.moe_combine.op import OP as MOE_COMBINE
from mkport.kernels.moe_down.op import OP as MOE_DOWN
from mkport.kernels.moe_group.op import OP as MOE_GROUP
from mkport.kernels.moe_group.op import slots_of
from mkport.kernels.moe_up.op import OP as MOE_UP
from mkport.kernels.topk.op import GROUPED
from mkport.kernels.topk.op import OP as TOPK
from mkport.models.step import Input, Norm, Step

MAX_EXPERTS = 4096  # a layer; far beyond any model
IN_PARTS = 32  # rows of a step, at most, whose slots are two nodes': of 64 it gains nothing


@dataclass(frozen=True)
class Experts:
    """A layer's mixture of experts."""

    experts: int
    top: int  # experts of a token
    ffn: int  # width of an expert
    softmax: bool  # scores: softmax over all experts, else the sigmoid of each logit
    renormalise: bool  # the chosen weights are divided by their sum
    scale: float = 1.0  # factor of the weights, after all that

    def checked(self) -> "Experts":
        """Itself. Raises UserError when a token would choose more experts than there are, or a
        layer has more than `MAX_EXPERTS`."""
        if self.experts > MAX_EXPERTS:
            raise UserError(
                f"config.json: {self.experts} experts a layer are not implemented: there can be "
                f"{MAX_EXPERTS} at most."
            )
        if self.top > self.experts:
            raise UserError(
                f"config.json: num_experts_per_tok = {self.top} is more than the {self.experts} "
                f"experts there are. One of the two fields is wrong."
            )
        return self


@dataclass(frozen=True)
class Part:
    """Slots of a layer that have nodes of their own."""

    first: int
    count: int
    name: str  # what their labels end with


def whole(step: Step, e: Experts) -> Part:
    """All slots."""
    return Part(0, _slots(step, e), "")


def parts(step: Step, e: Experts) -> tuple[Part, ...]:
    """All slots, or two halves of them, where a step's workers have some of each: while the last
    ones compute the first half of one part's experts, the others have the second half of the other
    part's."""
    slots = _slots(step, e)
    if not step.shape.slot_pairs or step.shape.rows > IN_PARTS or slots < 2:
        return (whole(step, e),)
    return Part(0, slots // 2, " 1"), Part(slots // 2, slots - slots // 2, " 2")


def add_experts(
    step: Step, layer: int, h: Input, prefix: str, e: Experts, norm: Norm | None = None
) -> Input | None:
    """x [rows, hidden] += the weighted sum of each token's chosen experts of h [rows, hidden].
    Returns as `combine`; None where products norm their inputs themselves, which is sooner.

    Source: Shazeer et al., "Outrageously Large Neural Networks", 2017; gated experts as in Mixtral,
    Jiang et al. 2024.
    """
    h = score(step, layer, h, prefix, e)
    choose(step, layer, e)
    up(step, layer, h, prefix, e, whole(step, e))
    down(step, layer, prefix, e, whole(step, e))
    return combine(step, layer, e, None if norm is None or step.folds(norm) else norm)


def _slots(step: Step, e: Experts) -> int:
    """Slots that a step can need."""
    return slots_of(e.experts, step.shape.rows, e.top, step.shape.slot_pairs)


def score(step: Step, layer: int, h: Input, prefix: str, e: Experts) -> Input:
    """The router's logits of every expert for each token of h [rows, hidden]: [rows, experts].
    Returns h for the experts, normed."""
    rows, label = step.shape.rows, f"layer {layer}"
    z = step.scratch("router_logits", rows, e.experts)
    w = step.weight(f"{prefix}.gate.weight", e.experts, step.hidden)
    normed = None if h.norm_w is None else step.scratch("h", rows, step.hidden)
    step.product(f"{label} / router", "count", h, w, z, e.experts, step.hidden, norm_y=normed)
    return h if normed is None else Input(normed)


def choose(step: Step, layer: int, e: Experts) -> None:
    """Each token's experts and their weights, [rows, top] both, and the experts of the step with
    their tokens: `slots` [slots + 1, 2] and `pairs` [rows * top].

    One op does both in a step of few rows: that is one step less for the others to wait for.
    """
    rows, label, slots = step.shape.rows, f"layer {layer}", _slots(step, e)
    ids = step.tensor("chosen", "i32", (rows, e.top), "scratch")
    lists = {
        "pairs": step.tensor("pairs", "i32", (rows * e.top,), "scratch"),
        "slots": step.tensor("slots", "i32", (slots + 1, 2), "scratch"),
        "slot_count": slots,
    }
    at_once = rows <= GROUPED
    step.graph.add(
        TOPK,
        f"{label} / topk",
        count="count",
        z=step.scratch("router_logits", rows, e.experts),
        ids=ids,
        weights=step.scratch("chosen_weights", rows, e.top),
        experts=e.experts,
        k=e.top,
        softmax=int(e.softmax),
        renormalise=int(e.renormalise),
        scale=e.scale,
        **(lists if at_once else {"slot_count": 0}),
    )
    if not at_once:
        step.graph.add(
            MOE_GROUP,
            f"{label} / group",
            count="count",
            ids=ids,
            experts=e.experts,
            k=e.top,
            most=step.shape.slot_pairs,
            **lists,
        )


def up(step: Step, layer: int, h: Input, prefix: str, e: Experts, part: Part) -> None:
    """Activations of the part's (token, expert) pairs: h [rows, hidden], normed already -> `act`
    [rows * top, ffn]."""
    assert h.norm_w is None, "experts norm nothing"
    slots = _slots(step, e)
    both = step.weight(f"{prefix}.experts.gate_up_proj", e.experts, 2 * e.ffn, step.hidden)
    pairs = (step.shape.rows * e.top, e.ffn)
    step.graph.add(
        MOE_UP,
        f"layer {layer} / experts_up{part.name}",
        count="count",
        slots="slots",
        pairs="pairs",
        x=h.x,
        w_gate=both,
        w_up=both,
        act=step.tensor("act", "f32", pairs, "scratch", (slots, e.ffn)),
        z="router_logits",
        experts=e.experts,
        n=e.ffn,
        k=step.hidden,
        top=e.top,
        first_slot=part.first,
        slot_count=part.count,
        slot_step=spread_step(part.count),
        up_row=e.ffn,
        most=step.shape.slot_pairs,
    )


def down(step: Step, layer: int, prefix: str, e: Experts, part: Part) -> None:
    """The outputs of the part's (token, expert) pairs: [rows * top, hidden]."""
    slots = _slots(step, e)
    pairs = (step.shape.rows * e.top, step.hidden)
    step.graph.add(
        MOE_DOWN,
        f"layer {layer} / experts_down{part.name}",
        slots="slots",
        pairs="pairs",
        act="act",
        w=step.weight(f"{prefix}.experts.down_proj", e.experts, step.hidden, e.ffn),
        y=step.tensor("expert_out", "f32", pairs, "scratch", (slots, step.hidden)),
        n=step.hidden,
        k=e.ffn,
        first_slot=part.first,
        slot_count=part.count,
        slot_step=spread_step(part.count),
        most=step.shape.slot_pairs,
    )


def combine(
    step: Step, layer: int, e: Experts, norm: Norm | None = None, more: str | None = None
) -> Input | None:
    """x [rows, hidden] += the weighted sum of each token's experts' outputs [rows * top, hidden];
    before that += `more` [rows, hidden], if it is given.

    With a `norm`, the one that the next layer begins with, a token's sum is normed at once: that is
    one step less for the others to wait for. Returns the next layer's input, [rows, hidden], or
    None.
    """
    carried: dict[str, Any] = {"mean": 0, "eps": 0.0}
    if norm is not None:
        carried = step.carried(f"model.layers.{layer + 1}.input_layernorm.weight", norm)
    step.graph.add(
        MOE_COMBINE,
        f"layer {layer} / combine_experts",
        count="count",
        weights="chosen_weights",
        y="expert_out",
        x="x",
        more=more,
        n=step.hidden,
        top=e.top,
        **carried,
    )
    return Input(carried["h"]) if norm is not None else None
