"""Router choice: the k best-scoring experts of each token, and their weights; and the step's pairs
by expert, as moe_group gives them, where they are asked for."""

from pathlib import Path

from mkport.declare import Op, immutable, integer, read, real, tensor, write
from mkport.declare.valid import counted, sets, shape_is, within

MOST = 0x7FFE  # experts, and pairs to group: a GPU's body has 16 bits for each
GROUPED = 8  # tokens, at most, whose pairs are grouped: one for each of a GPU worker's warps
ACROSS = 128  # experts that such a warp looks at together


def needed_slots(a):
    """Distinct experts that a step of this size can have."""
    return min(a.experts, a.ids.shape[0] * a.k)


def access(a, tile):
    """A tile is one token, or, if the pairs are grouped, all of the step's.

    Raises ValueError when there are fewer slots than a routing can ask for.
    """
    tokens = (tile, tile + 1) if a.slots is None else (0, a.ids.shape[0])
    yield immutable("count", (0, 1))
    yield read("z", tokens, (0, a.experts))
    yield write("ids", tokens, (0, a.k))
    yield write("weights", tokens, (0, a.k))
    if a.slots is None:
        return
    if not needed_slots(a) <= a.slot_count == a.slots.shape[0] - 1:
        raise ValueError(
            f"slots {a.slots.name} {list(a.slots.shape)} with slot_count {a.slot_count}: a step "
            f"can have {needed_slots(a)} distinct experts and needs one row more than slots"
        )
    yield write("pairs", (0, a.ids.shape[0] * a.k))
    yield write("slots", (0, a.slots.shape[0]), (0, 2))


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.ids.shape[0]
    yield from counted(a, tokens)
    yield from within(a, "experts", 1, MOST)
    yield from within(a, "k", 1, a.experts)
    yield from within(a, "softmax", 0, 1)
    yield from within(a, "renormalise", 0, 1)
    yield from shape_is(a, "z", tokens, "experts")
    yield from shape_is(a, "ids", tokens, "k")
    yield from shape_is(a, "weights", tokens, "k")
    yield sets(a.ids, "experts", a.experts)
    if (a.pairs is None) != (a.slots is None):
        yield f"pairs is {'absent' if a.pairs is None else 'given'} and slots is not: give both"
    elif a.slots is None:
        yield from within(a, "slot_count", 0, 0)
    else:
        yield from within(a, "slot_count", needed_slots(a))
        if tokens > GROUPED:
            yield f"the pairs of {tokens} tokens are grouped, not of 1 to {GROUPED}"
        if tokens * a.k > MOST:
            yield f"tokens * k is {tokens * a.k}, not 1 to {MOST}, as many as can be grouped"
        yield from shape_is(a, "pairs", tokens * a.k)
        yield from shape_is(a, "slots", a.slot_count + 1, 2)
        yield sets(a.slots, "experts", a.experts)
        yield sets(a.slots, "pairs", tokens * a.k)
        yield sets(a.slots, "most", 0)


def shared(a, rows):
    """Bytes: a bit for each expert, the tile's choices, and each warp's logits and scores."""
    tokens = 1 if a.slots is None else a.ids.shape[0]
    experts = -(-a.experts // ACROSS) * ACROSS
    chosen, scores = -(-(tokens * a.k + 8) // 4) * 4, -(-a.k // 4) * 4
    return 4 * (experts // 32 + chosen + tokens * (experts + scores))


OP = Op(
    name="topk",
    doc="ids[t] = the k largest z[t], best first; weights[t] = their scores (; pairs by expert)",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("z", "f32", "[tokens, experts] router logits"),
        tensor(
            "ids", "i32", "[tokens, k] chosen experts; -1 where a logit of the row is not finite"
        ),
        tensor("weights", "f32", "[tokens, k] their weights; NaN in such a row"),
        tensor("pairs", "i32", "[tokens * k] as moe_group's, if they are grouped", optional=True),
        tensor("slots", "i32", "[slots + 1, 2] as moe_group's, with pairs", optional=True),
        integer("experts", "number of experts"),
        integer("k", "experts chosen for a token"),
        integer("softmax", "1: softmax over all experts; 0: sigmoid of each logit"),
        integer("renormalise", "1: the chosen weights are divided by their sum"),
        integer("slot_count", "slots of the schedule: min(experts, tokens * k); 0 without them"),
        real("scale", "factor of the weights, after renormalising"),
    ),
    tiles=lambda a: a.ids.shape[0] if a.slots is None else 1,
    access=access,
    valid=valid,
    arena=lambda a: 4 * (-(-a.experts // 16) * 16 + 16),
    shared=shared,
    awaits=("z",),
    order=(
        "exact: the lower index wins a tie; exponentials summed in 16 lanes (32 on a GPU), expert "
        "e in lane e % 16, lanes joined in halves; the chosen summed best first. "
        "GPU: exp(x) = exp2(x * log2 e), approximate"
    ),
    folder=Path(__file__).parent,
)
