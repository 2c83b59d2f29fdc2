"""Groups the step's (token, choice) pairs by expert, so that each expert is read once.

Slot s is the s-th distinct expert of the step, in ascending order. A schedule holds as many slots
as a step can need; those left over say so, and their tasks do nothing but signal.
"""

from pathlib import Path

from mkport.declare import Op, integer, read, tensor, write


def access(a, tile):
    """The one tile reads every choice and writes the lists."""
    yield read("count", (0, 1))
    yield read("ids", (0, a.ids.shape[0]), (0, a.k))
    yield write("pairs", (0, a.pairs.shape[0]))
    yield write("slots", (0, a.slots.shape[0]), (0, 2))


OP = Op(
    name="moe_group",
    doc="slots[s] = (expert, first pair); pairs = token * k + choice, by expert, then by token",
    args=(
        tensor("count", "i32", "[1] tokens of this step"),
        tensor("ids", "i32", "[tokens, k] chosen experts; a row of -1 has no pairs"),
        tensor("pairs", "i32", "[tokens * k] pairs in order of their expert; -1 behind the last"),
        tensor("slots", "i32", "[slots + 1, 2] (expert, first pair); (-1, pairs) behind the last"),
        integer("experts", "number of experts"),
        integer("k", "experts chosen for a token"),
    ),
    tiles=lambda a: 1,
    access=access,
    arena=lambda a: 4 * (a.experts + 1),
    order="exact: experts ascending, tokens ascending within an expert",
    folder=Path(__file__).parent,
)
