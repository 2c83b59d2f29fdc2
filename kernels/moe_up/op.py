"""The experts' first half: act = silu(x Wg^T) * (x Wu^T) for each pair, with its own expert.

A tile is 8 columns of one slot: as many weight rows as other products' tiles have, and no more, so
that shares can be evened. Which expert and which tokens a slot has is data; in logical coordinates
its results are its own row, so no routing can make two tiles collide.
"""

from pathlib import Path

import numpy as np

from mkport.declare import DTYPE_BYTES, Op, immutable, integer, read, tensor, write
from mkport.declare.valid import computes_slots, counted, grouped, multiple_of, shape_is, within
from mkport.kernels.gemm.op import DOT_ARENA, staged_bytes, wide_bytes
from mkport.kernels.moe_group.op import SLOT_BYTES, lot_bytes, slot_lots

TILE_ROWS = 8  # weight rows of gate and of up in a tile


def columns(a):
    """Tiles of a slot."""
    return -(-a.n // TILE_ROWS)


def tiles(a):
    """A tile for each (8 columns, slot); neighbours lie `slot_step` slots apart."""
    return columns(a) * a.slot_count


def together(a):
    """Tiles of a lot, where a slot's pairs are limited."""
    return lot_bytes(a) // (2 * TILE_ROWS * a.k * DTYPE_BYTES[a.w_gate.dtype])


def staged(a, rows):
    """GPU: the tokens, an entry for each slot and the lists; where a slot's pairs are limited, its
    own tokens."""
    if a.most:
        return staged_bytes(a.w_gate, a.k, a.most)
    return (
        staged_bytes(a.w_gate, a.k, rows)
        + SLOT_BYTES * a.slot_count
        + 4 * (2 * (a.slot_count + 1) + a.pairs.shape[0])
    )


def access(a, tile):
    """A tile reads the lists, its tokens (any of the step's) and its expert (any of all).

    Raises ValueError for slots that there are not, and where `act` has fewer rows than pairs.
    """
    slots = a.slots.shape[0] - 1
    if a.first_slot + a.slot_count > slots or a.act.shape[0] < a.pairs.shape[0]:
        raise ValueError(
            f"slots {a.first_slot} to {a.first_slot + a.slot_count} of the {slots} in "
            f"{a.slots.name}, or {a.act.name} {list(a.act.shape)} for {a.pairs.shape[0]} pairs: "
            "there are not so many"
        )
    slot = a.first_slot + tile * a.slot_step % a.slot_count
    column = tile // a.slot_count
    gate = (column * TILE_ROWS, np.minimum((column + 1) * TILE_ROWS, a.n))
    experts = (0, a.w_gate.shape[0])
    up = (gate[0] + a.up_row, gate[1] + a.up_row)
    yield immutable("count", (0, 1))
    yield read("slots", (a.first_slot, a.first_slot + a.slot_count + 1), (0, 2))
    yield read("pairs", (0, a.pairs.shape[0]))
    yield read("x", (0, a.x.shape[0]), (0, a.k))
    if a.z is not None:
        yield read("z", (0, a.z.shape[0]), (0, a.experts))
    yield immutable("w_gate", experts, gate, (0, a.k), picks=1)
    yield immutable("w_up", experts, up, (0, a.k), picks=1)
    yield write("act", (slot, slot + 1), gate)


def valid(a):
    """What the arguments must satisfy."""
    tokens, experts = a.x.shape[0], a.w_gate.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "n")
    yield from multiple_of(a, 16, "k")
    yield from within(a, "top", 1, experts)
    if a.up_row not in (0, a.n):
        yield f"up_row is {a.up_row}, neither 0 nor n = {a.n}"
    height = a.n + a.up_row  # rows of an expert
    yield from shape_is(a, "x", tokens, "k")
    if a.z is None:
        yield from within(a, "experts", 0, 0)
    else:
        yield from within(a, "experts", experts, experts)
        yield from shape_is(a, "z", tokens, "experts")
    yield from shape_is(a, "w_gate", experts, height, "k")
    yield from shape_is(a, "w_up", experts, height, "k")
    pairs = tokens * a.top
    yield from grouped(a, pairs, experts)
    yield from shape_is(a, "act", pairs, "n", logical=(a.slots.shape[0] - 1, "n"))
    yield from computes_slots(a, a.act)


OP = Op(
    name="moe_up",
    doc="act[p] = silu(x[t] w_gate[e]^T) * (x[t] w_up[e]^T), pair p of token t and expert e",
    args=(
        tensor("count", "i32", "[1] tokens of this step"),
        tensor("slots", "i32", "[slots + 1, 2] (expert, first pair) of each slot"),
        tensor("pairs", "i32", "[tokens * top] pairs, token * top + choice, in slot order"),
        tensor("x", "f32", "[tokens, k] input"),
        tensor("w_gate", "weight", "[experts, n, k], or [experts, 2 n, k] holding both"),
        tensor("w_up", "weight", "[experts, n, k], or w_gate itself"),
        tensor("act", "f32", "[tokens * top, n] output, in the order of `pairs`"),
        tensor(
            "z",
            "f32",
            "[tokens, experts] logits by which topk made the slots: a GPU's workers choose by "
            "themselves where there is one token",
            optional=True,
        ),
        integer("n", "expert width"),
        integer("k", "input columns, a multiple of 16"),
        integer("top", "experts of a token"),
        integer("slot_count", "slots of this node"),
        integer("slot_step", "slots from a tile to the next, without a divisor of slot_count"),
        integer("up_row", "row of an expert's block where up begins: 0, or n where gate is first"),
        integer("most", "pairs of a slot; 0: any number", 0),
        integer("experts", "columns of z; 0 without it", 0),
        integer("first_slot", "the first of them; another node has those before it", 0),
    ),
    tiles=tiles,
    access=access,
    valid=valid,
    # the second product begins so much later; both products' widened weights
    arena=lambda a: DOT_ARENA + 4 * 16 * TILE_ROWS + wide_bytes(a.k),
    shared=staged,
    rows=lambda a: min(a.most or a.x.shape[0], a.x.shape[0]),
    lots=slot_lots(columns, together),
    addresses="slots",
    awaits=("slots", "pairs", "x", "z"),
    streams=lambda a: 2 * TILE_ROWS * a.k * DTYPE_BYTES[a.w_gate.dtype],
    order=(
        "both products as in gemm; act = (gate / (1 + exp(-gate))) * up. "
        "GPU: exp(x) = exp2(x * log2 e), approximate"
    ),
    folder=Path(__file__).parent,
)
