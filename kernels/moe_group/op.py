"""Groups the step's (token, choice) pairs by expert, so that each expert is read once.

Slot s is the s-th distinct expert of the step, in ascending order; an expert with more pairs than
a slot may have (`most`) takes several slots, one behind the other. A schedule holds as many slots
as a step can need; those left over say so, and their tasks do nothing but signal. Each pair lies
in exactly one slot, so what a slot's tiles write is that slot's own, whatever the routing: the ops
behind this one declare it as row `slot`.
"""

from pathlib import Path

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, same, sets, shape_is, within

LOT_BYTES = 3 << 17  # of weights that a record of an expert op reads, if a lot is one slot's
MANY = 256  # pairs, above which it reads twice as many
PAIR_BYTES = 640  # of weights that a GPU reads in the time that a pair takes
SLOT_BYTES = 40  # of a slot's entry in the expert ops' stage buffers: place, tokens, 8 tags


def slots_of(experts, tokens, k, most):
    """Slots of up to `most` pairs (0: any number) that a step can need.

    D distinct experts have a slot each, and each further one takes `most` pairs more.
    """
    distinct = min(experts, tokens * k)
    return distinct + (tokens * k - distinct) // most if 0 < most < tokens else distinct


def needed_slots(a):
    """Slots that a step of this size can need."""
    return slots_of(a.experts, a.ids.shape[0], a.k, a.most)


def lot_bytes(a):
    """Bytes of a lot: the more slots are used, the larger a share of them all workers get."""
    return 2 * LOT_BYTES if a.pairs.shape[0] > MANY else LOT_BYTES


def slot_lots(columns, together):
    """The lots of an expert op: `together(a)` tiles of one slot each, of its `columns(a)`."""

    def lots(a):
        if not a.most:
            return [(0, 1, columns(a) * a.slot_count)]
        # slot by slot, the used ones first: dealt in turn, all workers have equally many of them
        inverse = pow(a.slot_step, -1, a.slot_count) if a.slot_count > 1 else 0
        step = max(together(a), 1)
        return [
            (first * a.slot_count + slot * inverse % a.slot_count, a.slot_count,
             min(step, columns(a) - first))
            for slot in range(a.slot_count)
            for first in range(0, columns(a), step)
        ]  # fmt: skip

    return lots


def access(a, tile):
    """The one tile reads every choice and writes the lists.

    Raises ValueError when there are fewer slots than a routing can ask for.
    """
    if not needed_slots(a) <= a.slot_count == a.slots.shape[0] - 1:
        raise ValueError(
            f"slots {a.slots.name} {list(a.slots.shape)} with slot_count {a.slot_count}: a step "
            f"can need {needed_slots(a)} slots, and one row more than slots"
        )
    yield immutable("count", (0, 1))
    yield read("ids", (0, a.ids.shape[0]), (0, a.k))
    yield write("pairs", (0, a.pairs.shape[0]))
    yield write("slots", (0, a.slots.shape[0]), (0, 2))


def shared(a, rows):
    """GPU: each pair's expert, and four words for each expert."""
    return 4 * (-(-a.ids.shape[0] * a.k // 4) * 4 + 4 * a.experts)


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.ids.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "experts")
    yield from within(a, "k", 1, a.experts)
    yield from within(a, "most", 0)
    yield from within(a, "slot_count", needed_slots(a))
    yield from shape_is(a, "ids", tokens, "k")
    yield from shape_is(a, "pairs", tokens * a.k)
    yield from shape_is(a, "slots", a.slot_count + 1, 2)
    yield same(a.ids, "experts", a.experts)
    yield sets(a.slots, "experts", a.experts)
    yield sets(a.slots, "most", a.most)
    yield sets(a.slots, "pairs", tokens * a.k)


OP = Op(
    name="moe_group",
    doc="slots[s] = (expert, first pair); pairs = token * k + choice, by expert, then by token",
    args=(
        tensor("count", "i32", "[1] tokens of this step"),
        tensor(
            "ids",
            "i32",
            "[tokens, k] chosen experts, different ones in a row; a row of -1 has no pairs",
        ),
        tensor(
            "pairs",
            "i32",
            "[tokens * k] pairs in order of their expert; what is behind the last stays",
        ),
        tensor("slots", "i32", "[slots + 1, 2] (expert, first pair); (-1, pairs) behind the last"),
        integer("experts", "number of experts"),
        integer("k", "experts chosen for a token"),
        integer("slot_count", "slots of the schedule: as many as a step can need"),
        integer("most", "pairs of a slot; 0: any number", 0),
    ),
    tiles=lambda a: 1,
    access=access,
    valid=valid,
    arena=lambda a: 4 * (a.experts + 1),
    shared=shared,
    streams=lambda a: PAIR_BYTES * a.pairs.shape[0] if a.most else 0,
    order="exact: experts ascending, tokens ascending within an expert",
    folder=Path(__file__).parent,
)
