"""The weighted sum of a token's experts, added to its residual row, in order of choice."""

from pathlib import Path

import numpy as np

from mkport.declare import Op, immutable, integer, read, tensor, update
from mkport.declare.valid import counted, multiple_of, shape_is

COLUMNS = 1024  # of a tile: a vector of 4 for each of a GPU worker's 256 threads


def parts(a):
    """Tiles of a token."""
    return -(-a.n // COLUMNS)


def access(a, tile):
    """A tile is up to 1024 columns of a token.

    Which slots the token's experts were in is data, so it reads any of all.
    """
    token, first = tile // parts(a), tile % parts(a) * COLUMNS
    columns = (first, np.minimum(first + COLUMNS, a.n))
    yield immutable("count", (0, 1))
    yield read("weights", (token, token + 1), (0, a.top))
    yield read("y", (0, a.y.logical[0]), columns)
    yield update("x", (token, token + 1), columns)


def valid(a):
    """What the arguments must satisfy."""
    tokens = a.x.shape[0]
    yield from counted(a, tokens)
    yield from multiple_of(a, 1, "top")
    yield from multiple_of(a, 16, "n")
    yield from shape_is(a, "weights", tokens, "top")
    yield from shape_is(a, "y", tokens * a.top, "n", logical=(None, "n"))  # slots, if by slot
    yield from shape_is(a, "x", tokens, "n")


OP = Op(
    name="moe_combine",
    doc="x[t] += sum over choices c of weights[t, c] y[t * top + c]",
    args=(
        tensor("count", "i32", "[1] tokens of this step; later rows are left alone"),
        tensor("weights", "f32", "[tokens, top] weights of the choices; NaN in a row without any"),
        tensor("y", "f32", "[tokens * top, n] the experts' outputs, by token and choice"),
        tensor("x", "f32", "[tokens, n] residual stream"),
        integer("n", "columns, a multiple of 16"),
        integer("top", "experts of a token"),
    ),
    tiles=lambda a: a.x.shape[0] * parts(a),
    access=access,
    valid=valid,
    order="m = 0; best choice first, m = fma(weight, y, m); x + m",
    folder=Path(__file__).parent,
)
