"""Router choice: the k best-scoring experts of each token, and their weights."""

from pathlib import Path

from mkport.declare import Op, immutable, integer, read, real, tensor, write
from mkport.declare.valid import counted, multiple_of, sets, shape_is, within


def access(a, tile):
    """A tile is one token."""
    yield immutable("count", (0, 1))
    yield read("z", (tile, tile + 1), (0, a.experts))
    yield write("ids", (tile, tile + 1), (0, a.k))
    yield write("weights", (tile, tile + 1), (0, a.k))


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.ids.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "experts")
    yield from within(a, "k", 1, a.experts)
    yield from within(a, "softmax", 0, 1)
    yield from within(a, "renormalise", 0, 1)
    yield from shape_is(a, "z", tokens, "experts")
    yield from shape_is(a, "ids", tokens, "k")
    yield from shape_is(a, "weights", tokens, "k")
    yield sets(a.ids, "experts", a.experts)


OP = Op(
    name="topk",
    doc="ids[t] = the k largest z[t], best first; weights[t] = their scores",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("z", "f32", "[tokens, experts] router logits"),
        tensor(
            "ids", "i32", "[tokens, k] chosen experts; -1 where a logit of the row is not finite"
        ),
        tensor("weights", "f32", "[tokens, k] their weights; NaN in such a row"),
        integer("experts", "number of experts"),
        integer("k", "experts chosen for a token"),
        integer("softmax", "1: softmax over all experts; 0: sigmoid of each logit"),
        integer("renormalise", "1: the chosen weights are divided by their sum"),
        real("scale", "factor of the weights, after renormalising"),
    ),
    tiles=lambda a: a.ids.shape[0],
    access=access,
    valid=valid,
    arena=lambda a: 4 * (-(-a.experts // 16) * 16 + 16),
    shared=lambda a, rows: 4 * (a.experts + 3 + 2 * a.k),
    order=(
        "exact: the lower index wins a tie; exponentials summed in 16 lanes (32 on a GPU), expert "
        "e in lane e % 16, lanes joined in halves; the chosen summed best first. "
        "GPU: exp(x) = exp2(x * log2 e), approximate"
    ),
    folder=Path(__file__).parent,
)
