"""The weighted sum of a token's experts, added to its residual row in order of choice, as may be
what else belongs there; and that row's norm, where one is asked for."""

from pathlib import Path

import numpy as np

from mkport.declare import Op, immutable, integer, read, real, tensor, update, write
from mkport.declare.valid import counted, multiple_of, needs_slots, shape_is, within

COLUMNS = 1024  # of a tile without a norm: a vector of 4 for each of a GPU worker's 256 threads


def parts(a):
    """Tiles of a token; a norm needs the whole row."""
    return -(-a.n // COLUMNS) if a.w is None else 1


def access(a, tile):
    """A tile is up to 1024 columns of a token, or, if a norm follows, its whole row.

    Which slots the token's experts were in is data, so it reads any of all.
    """
    token, first = tile // parts(a), tile % parts(a) * COLUMNS
    columns = (first, np.minimum(first + COLUMNS, a.n)) if a.w is None else (0, a.n)
    yield immutable("count", (0, 1))
    yield read("weights", (token, token + 1), (0, a.top))
    yield read("y", (0, a.y.logical[0]), columns)
    if a.more is not None:
        yield read("more", (token, token + 1), columns)
    if a.out is None:
        yield update("x", (token, token + 1), columns)
    else:
        yield read("x", (token, token + 1), columns)
        yield write("out", (token, token + 1), columns)
    if a.w is not None:
        yield immutable("w", (0, a.n))
        yield write("h", (token, token + 1), (0, a.n))


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.x.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "top")
    yield from multiple_of(a, 16, "n")
    yield from within(a, "mean", 0, 1)
    yield from shape_is(a, "weights", tokens, "top")
    yield from shape_is(a, "y", tokens * a.top, "n", logical=(None, "n"))  # slots, if by slot
    yield needs_slots(a.y, a.y.logical[0])
    yield from shape_is(a, "x", tokens, "n")
    yield from shape_is(a, "more", tokens, "n")
    yield from shape_is(a, "out", tokens, "n")
    yield from shape_is(a, "w", "n")
    yield from shape_is(a, "h", tokens, "n")
    if (a.w is None) != (a.h is None):
        yield f"w is {'absent' if a.w is None else 'given'} and h is not: a norm needs both"
    elif a.h is not None and a.h.name == a.x.name:
        yield "h is x, which must stay as it is before the norm"
    if a.more is not None and a.more.name == a.x.name:
        yield "more is x, which is added to itself"
    for name in ("x", "y", "more", "h"):
        other = getattr(a, name)
        if a.out is not None and other is not None and a.out.name == other.name:
            yield f"out is {name}: leave out away for a sum that stays in x"


OP = Op(
    name="moe_combine",
    doc="x[t] += (more[t] +) sum over c of weights[t, c] y[t * top + c] (; h[t] = norm of it)",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("weights", "f32", "[tokens, top] weights of the choices; NaN in a row without any"),
        tensor("y", "f32", "[tokens * top, n] the experts' outputs, by token and choice"),
        tensor("x", "f32", "[tokens, n] residual stream"),
        tensor("more", "f32", "[tokens, n] what is added to x before that", optional=True),
        tensor("out", "f32", "[tokens, n] where the sum goes, if not to x", optional=True),
        tensor("w", "f32", "[n] weight of the norm, if there is one", optional=True),
        tensor("h", "f32", "[tokens, n] the normed rows, if there is a norm", optional=True),
        integer("n", "columns, a multiple of 16"),
        integer("top", "experts of a token"),
        integer("mean", "the norm is 1: layernorm's, 0: rmsnorm's"),
        real("eps", "of the norm"),
    ),
    tiles=lambda a: a.x.shape[0] * parts(a),
    access=access,
    valid=valid,
    shared=lambda a, rows: 0 if a.w is None else 8 * a.n,  # the norm's weights, and a row
    awaits=("weights", "y", "x", "more"),
    elsewhere=(("x", "out"),),
    order="m = 0; best choice first, m = fma(weight, y, m); (x + more) + m; the norm as in its op",
    folder=Path(__file__).parent,
)
