"""The experts' second half: y = act Wd^T for each pair, with its own expert."""

from pathlib import Path

import numpy as np

from mkport.declare import DTYPE_BYTES, Op, immutable, integer, read, tensor, write
from mkport.declare.valid import computes_slots, grouped, multiple_of, needs_slots, shape_is
from mkport.kernels.gemm.op import DOT_ARENA, staged_bytes, wide_bytes
from mkport.kernels.moe_group.op import SLOT_BYTES, lot_bytes, slot_lots

TILE_ROWS = 16  # weight rows, that is output columns, of a tile


def columns(a):
    """Tiles of a slot."""
    return -(-a.n // TILE_ROWS)


def tiles(a):
    """A tile for each (16 columns, slot); neighbours lie `slot_step` slots apart."""
    return columns(a) * a.slot_count


def together(a):
    """Tiles of a lot, where a slot's pairs are limited."""
    return lot_bytes(a) // (TILE_ROWS * a.k * DTYPE_BYTES[a.w.dtype])


def access(a, tile):
    """A tile reads its slot's activations and its expert (any of all).

    Raises ValueError for slots that there are not, and where `y` has fewer rows than pairs.
    """
    slots = a.slots.shape[0] - 1
    if a.first_slot + a.slot_count > slots or a.y.shape[0] < a.pairs.shape[0]:
        raise ValueError(
            f"slots {a.first_slot} to {a.first_slot + a.slot_count} of the {slots} in "
            f"{a.slots.name}, or {a.y.name} {list(a.y.shape)} for {a.pairs.shape[0]} pairs: "
            "there are not so many"
        )
    slot = a.first_slot + tile * a.slot_step % a.slot_count
    column = tile // a.slot_count
    written = (column * TILE_ROWS, np.minimum((column + 1) * TILE_ROWS, a.n))
    yield read("slots", (a.first_slot, a.first_slot + a.slot_count + 1), (0, 2))
    yield read("pairs", (0, a.pairs.shape[0]))
    yield read("act", (slot, slot + 1), (0, a.k))
    yield immutable("w", (0, a.w.shape[0]), written, (0, a.k), picks=1)
    yield write("y", (slot, slot + 1), written)


def staged(a, rows):
    """GPU: 24 pairs of bfloat16 (20 of float32), 8 if a step has one token; and lists of slots,
    places, and pairs. Where a slot's pairs are limited, those alone."""
    if a.most:
        return staged_bytes(a.w, a.k, a.most)
    pairs = 8 if rows == 1 else 24 if a.w.dtype == "bf16" else 20
    words = 2 * (a.slot_count + 1) + 2 * a.slot_count + pairs
    return staged_bytes(a.w, a.k, pairs) + SLOT_BYTES * a.slot_count + 4 * words


def valid(a):
    """What the arguments must satisfy."""
    pairs, experts = a.pairs.shape[0], a.w.shape[0]
    yield from multiple_of(a, 1, "n")
    yield from multiple_of(a, 16, "k")
    yield from shape_is(a, "w", experts, "n", "k")
    yield from grouped(a, pairs, experts)
    yield from shape_is(a, "act", pairs, "k", logical=(a.slots.shape[0] - 1, "k"))
    yield from shape_is(a, "y", pairs, "n", logical=(a.slots.shape[0] - 1, "n"))
    yield needs_slots(a.act, a.first_slot + a.slot_count)
    yield from computes_slots(a, a.y)


OP = Op(
    name="moe_down",
    doc="y[token * top + choice] = act[p] w[e]^T, pair p of expert e",
    args=(
        tensor("slots", "i32", "[slots + 1, 2] (expert, first pair) of each slot"),
        tensor("pairs", "i32", "[tokens * top] pairs, token * top + choice, in slot order"),
        tensor("act", "f32", "[tokens * top, k] input, in the order of `pairs`"),
        tensor("w", "weight", "[experts, n, k] down weights"),
        tensor("y", "f32", "[tokens * top, n] output, by token and choice"),
        integer("n", "output columns"),
        integer("k", "expert width, a multiple of 16"),
        integer("slot_count", "slots of this node"),
        integer("slot_step", "slots from a tile to the next, without a divisor of slot_count"),
        integer("most", "pairs of a slot; 0: any number", 0),
        integer("first_slot", "the first of them; another node has those before it", 0),
    ),
    tiles=tiles,
    access=access,
    valid=valid,
    arena=lambda a: DOT_ARENA + wide_bytes(a.k),
    shared=staged,
    rows=lambda a: a.most,
    lots=slot_lots(columns, together),
    streams=lambda a: TILE_ROWS * a.k * DTYPE_BYTES[a.w.dtype] if a.most else 0,
    addresses="slots",
    awaits=("slots", "pairs", "act"),
    order="the product as in gemm",
    folder=Path(__file__).parent,
)
