"""The next token: the best of a row's blocks that `sample` left; of a row that is cut, the best of
those tokens that min_p, top_k and top_p leave. And what a row is told of log probabilities."""

from pathlib import Path

from mkport.declare import Op, immutable, integer, read, tensor, update, write
from mkport.declare.valid import counted, multiple_of, shape_is
from mkport.kernels.sample.op import GROUP, WORDS, groups, parts

RIVALS = 20  # whose log probabilities a row can be told
BUCKETS = 256  # into which a pass of the search for the k-th largest value counts


def access(a, tile):
    """A tile is one row; which sequence it stands for is data, and another one for each row that
    counts its tokens."""
    row = (tile, tile + 1)
    yield immutable("count", (0, 1))
    yield read("x", row, (0, a.n))
    yield immutable("sampling", row, (0, WORDS))
    yield immutable("index", row)
    yield immutable("rows", (0, a.rows.shape[0]), (0, 2))
    yield read("scores", row, (0, groups(a) * GROUP))
    yield read("best", row, (0, parts(a)))
    yield read("at", row, (0, parts(a)))
    yield read("peaks", row, (0, 2), (0, groups(a)))
    yield read("sums", row, (0, 2), (0, groups(a)))
    yield update("tally", (0, a.tally.shape[0]), (0, a.tally.shape[1]), apart=True)
    yield write("y", row)
    yield write("ids", row, (0, RIVALS))
    yield write("logprobs", row, (0, RIVALS + 1))


def valid(a):
    """What the arguments must satisfy."""
    rows, padded = a.y.shape[0], groups(a) * GROUP
    yield from counted(a, rows)
    yield from multiple_of(a, 1, "n")
    yield from shape_is(a, "x", rows, "n")
    yield from shape_is(a, "sampling", rows, WORDS)
    yield from shape_is(a, "index", rows)
    yield from shape_is(a, "rows", None, 2)
    yield from shape_is(a, "scores", rows, padded)
    yield from shape_is(a, "best", rows, parts(a))
    yield from shape_is(a, "at", rows, parts(a))
    yield from shape_is(a, "peaks", rows, 2, groups(a))
    yield from shape_is(a, "sums", rows, 2, groups(a))
    yield from shape_is(a, "tally", None, padded)
    yield from shape_is(a, "y", rows)
    yield from shape_is(a, "ids", rows, RIVALS)
    yield from shape_is(a, "logprobs", rows, RIVALS + 1)
    for name in ("sampling", "index", "rows"):
        if (kind := getattr(a, name).kind) != "input":
            yield f"{name} is of kind {kind}, not input"


OP = Op(
    name="sample_join",
    doc="y[t] = at[t, p] of the largest best[t, p], or the best of those that the row's cuts leave",
    args=(
        tensor("count", "i32", "[1] rows of this step; later rows are left alone"),
        tensor("x", "f32", "[rows, n] logits"),
        tensor("sampling", "i32", "[rows, 16] as `sample` has it"),
        tensor("index", "i32", "[rows] the step's token that a row of x belongs to"),
        tensor("rows", "i32", "[tokens, 2] (sequence, position) of each token"),
        tensor("scores", "f32", "[rows, n] of rows that are edited or cut: what is drawn from"),
        tensor("best", "f32", "[rows, blocks of 4096] each block's largest value"),
        tensor("at", "i32", "[rows, blocks of 4096] its index; -1: a logit is not finite"),
        tensor("peaks", "f32", "[rows, 2, groups of 128] the largest scores, and logits"),
        tensor("sums", "f32", "[rows, 2, groups of 128] the sum of e^(value - largest) of each"),
        tensor(
            "tally", "i32", "[sequences, n] counts the token, where the row has a penalty for it"
        ),
        tensor("y", "i32", "[rows] output; -1: a logit is not finite, -2: no column may be chosen"),
        tensor("ids", "i32", "[rows, 20] of rows that are told: the largest logits' columns"),
        tensor(
            "logprobs", "f32", "[rows, 21] likewise: the log probability of y, then those of ids"
        ),
        integer("n", "columns; tensors that say groups, scores and tally are padded"),
    ),
    tiles=lambda a: a.y.shape[0],
    access=access,
    valid=valid,
    arena=lambda a: BUCKETS * 4 + RIVALS * 8,
    shared=lambda a, rows: 2048 + 2 * groups(a),
    order=(
        "exact but for the noise: the lower index wins a tie. Weights, e^(value - largest), are "
        "whole numbers of 2^-40, so that their sums have no order; of the whole row, each group's "
        "sum times the weight of its largest. min_p leaves score >= largest + log min_p; top_k the "
        "k largest of what is left; top_p those of what is left then whose larger ones weigh less "
        "than top_p of it. A log probability is (logit - largest) - log(weight), in float32"
    ),
    folder=Path(__file__).parent,
)
