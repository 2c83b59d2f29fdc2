"""The next token, greedy or drawn: each block's best. `sample_join` takes the best of all, and cuts
away the unlikely ones first where a row asks for that."""

from pathlib import Path

import numpy as np

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import counted, multiple_of, shape_is

COLUMNS = 4096  # of a tile
GROUP = 128  # columns whose largest value and whose weight are kept
WORDS = 16  # of a row's way to choose


def parts(a):
    """Tiles of a row."""
    return -(-a.n // COLUMNS)


def groups(a):
    """Groups of a row."""
    return -(-a.n // GROUP)


def access(a, tile):
    """A tile is a block of one row's columns; which token the row stands for is data."""
    row, part = tile // parts(a), tile % parts(a)
    first, padded = part * COLUMNS, groups(a) * GROUP
    columns = (first, np.minimum(first + COLUMNS, a.n))
    padded_columns = (first, np.minimum(first + COLUMNS, padded))
    inside = (first // GROUP, np.minimum((first + COLUMNS) // GROUP, groups(a)))
    yield immutable("count", (0, 1))
    yield read("x", (row, row + 1), columns)
    yield immutable("sampling", (row, row + 1), (0, WORDS))
    yield immutable("index", (row, row + 1))
    yield immutable("rows", (0, a.rows.shape[0]), (0, 2))
    for name in ("mask", "bias", "tally"):
        spec = getattr(a, name)
        yield read(name, (0, spec.shape[0]), (0, spec.shape[1]))
    yield write("scores", (row, row + 1), padded_columns)
    yield write("best", (row, row + 1), (part, part + 1))
    yield write("at", (row, row + 1), (part, part + 1))
    yield write("peaks", (row, row + 1), (0, 2), inside)
    yield write("sums", (row, row + 1), (0, 2), inside)


def valid(a):
    """What the arguments must satisfy."""
    rows, padded = a.x.shape[0], groups(a) * GROUP
    yield from counted(a, rows)
    yield from multiple_of(a, 1, "n")
    yield from shape_is(a, "x", rows, "n")
    yield from shape_is(a, "sampling", rows, WORDS)
    yield from shape_is(a, "index", rows)
    yield from shape_is(a, "rows", None, 2)
    yield from shape_is(a, "mask", None, padded // 32)
    yield from shape_is(a, "bias", None, padded)
    yield from shape_is(a, "tally", None, padded)
    yield from shape_is(a, "scores", rows, padded)
    yield from shape_is(a, "best", rows, parts(a))
    yield from shape_is(a, "at", rows, parts(a))
    yield from shape_is(a, "peaks", rows, 2, groups(a))
    yield from shape_is(a, "sums", rows, 2, groups(a))
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
            "[rows, 16] a float32 temperature's bits (0: no noise), a seed's low and high word, "
            "the number of the choice, flags (1 repetition, 2 counts, 4 bias, 8 no end yet, 16 "
            "mask, 32 min_p), top_k, top_p times 2^32, float32 bits of min_p's logarithm and of "
            "the three penalties, 1 + rivals told, 1 + the token given instead; 0: none",
        ),
        tensor("index", "i32", "[rows] the step's token that a row of x belongs to"),
        tensor("rows", "i32", "[tokens, 2] (sequence, position) of each token"),
        tensor("mask", "i32", "[sequences, n / 32] a bit for each column that may be chosen"),
        tensor("bias", "f32", "[sequences, n] is added to the logits"),
        tensor(
            "tally",
            "i32",
            "[sequences, n] how often a token is in the output, + 2^28 if it is in the prompt, + "
            "2^29 if it may end the output",
        ),
        tensor("scores", "f32", "[rows, n] of rows that are edited or cut: what is drawn from"),
        tensor("best", "f32", "[rows, blocks of 4096] the largest; NaN if a logit is not finite"),
        tensor("at", "i32", "[rows, blocks of 4096] its lowest index; -1 if one is not finite"),
        tensor(
            "peaks",
            "f32",
            "[rows, 2, groups of 128] the largest of the scores of rows that are cut, and of the "
            "logits of rows that are told",
        ),
        tensor("sums", "f32", "[rows, 2, groups of 128] the sum of e^(value - largest) of each"),
        integer("n", "columns; those tensors that say groups, and those of sequences, are padded"),
    ),
    tiles=lambda a: a.x.shape[0] * parts(a),
    access=access,
    valid=valid,
    order=(
        "exact but for the noise and the sums: the lower index wins a tie. Each logit: repetition "
        "penalty, counts * frequency + presence, bias, ends, mask, / temperature. Noise of column "
        "n: word n % 4 of Philox4x32-10 with the key (seed low, seed high) and the counter (n / 4, "
        "position, choice, 0), as v = min((word + 1/2) / 2^32, 1 - 2^-24), as -log(-log(1 - v)), "
        "every step rounded to float32. Sums: 8 slices of 16 columns, i with i + 4, then i + 2, "
        "then i + 1, then the 16 lanes in halves"
    ),
    folder=Path(__file__).parent,
)
