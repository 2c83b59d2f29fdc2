"""The next token, greedy or drawn: each block's best. `sample_join` takes the best of all."""

from pathlib import Path

import numpy as np

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is

COLUMNS = 4096  # of a tile
WORDS = 4  # of a row's way to choose: temperature's bits, seed low, seed high, choice


def parts(a):
    """Tiles of a row."""
    return -(-a.n // COLUMNS)


def access(a, tile):
    """A tile is a block of one row's columns; which token the row stands for is data."""
    row, part = tile // parts(a), tile % parts(a)
    columns = (part * COLUMNS, np.minimum((part + 1) * COLUMNS, a.n))
    yield immutable("count", (0, 1))
    yield read("x", (row, row + 1), columns)
    yield immutable("sampling", (row, row + 1), (0, WORDS))
    yield immutable("index", (row, row + 1))
    yield immutable("rows", (0, a.rows.shape[0]), (0, 2))
    yield write("best", (row, row + 1), (part, part + 1))
    yield write("at", (row, row + 1), (part, part + 1))


def valid(a):
    """What the arguments must satisfy."""
    rows = a.x.shape[0]
    yield from counted(a, rows)
    yield from multiple_of(a, 1, "n")
    yield from shape_is(a, "x", rows, "n")
    yield from shape_is(a, "sampling", rows, WORDS)
    yield from shape_is(a, "index", rows)
    yield from shape_is(a, "rows", None, 2)
    yield from shape_is(a, "best", rows, parts(a))
    yield from shape_is(a, "at", rows, parts(a))
    for name in ("sampling", "index", "rows"):
        if (kind := getattr(a, name).kind) != "input":
            yield f"{name} is of kind {kind}, not input"


OP = Op(
    name="sample",
    doc="best[t, p], at[t, p] = the largest of x[t, n] / temperature + noise over block p of n",
    args=(
        tensor("count", "i32", "[1] rows of this step; later rows are left alone"),
        tensor("x", "f32", "[rows, n] logits"),
        tensor(
            "sampling",
            "i32",
            "[rows, 4] a float32 temperature's bits (0: no noise), a seed's low and high word, the "
            "number of the choice",
        ),
        tensor("index", "i32", "[rows] the step's token that a row of x belongs to"),
        tensor("rows", "i32", "[tokens, 2] (sequence, position) of each token"),
        tensor("best", "f32", "[rows, blocks of 4096] the largest; NaN if a logit is not finite"),
        tensor("at", "i32", "[rows, blocks of 4096] its lowest index; -1 if one is not finite"),
        integer("n", "columns"),
    ),
    tiles=lambda a: a.x.shape[0] * parts(a),
    access=access,
    valid=valid,
    order=(
        "exact but for the noise: the lower index wins a tie. Noise of column n: word n % 4 of "
        "Philox4x32-10 with the key (seed low, seed high) and the counter (n / 4, position, "
        "choice, 0), as v = min((word + 1/2) / 2^32, 1 - 2^-24), as -log(-log(1 - v)), every step "
        "rounded to float32"
    ),
    folder=Path(__file__).parent,
)
