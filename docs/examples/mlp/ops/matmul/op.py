"""A matrix product with a weight."""

from pathlib import Path

import numpy as np

from mkport.declare import Op, immutable, integer, read, tensor, write
from mkport.declare.valid import multiple_of, shape_is

COLUMNS = 32  # of y in a tile


def access(a, tile):
    """A tile is 32 output columns of every row."""
    columns = (tile * COLUMNS, np.minimum((tile + 1) * COLUMNS, a.n))
    yield read("x", (0, a.rows), (0, a.k))
    yield immutable("w", columns, (0, a.k))
    yield write("y", (0, a.rows), columns)


def valid(a):
    """What the arguments must satisfy."""
    yield from multiple_of(a, 1, "rows", "n", "k")
    yield from shape_is(a, "x", "rows", "k")
    yield from shape_is(a, "w", "n", "k")
    yield from shape_is(a, "y", "rows", "n")


OP = Op(
    name="matmul",
    doc="y[t, n] = sum_k x[t, k] w[n, k]",
    args=(
        tensor("x", "f32", "[rows, k] input"),
        tensor("w", "f32", "[n, k] weight"),
        tensor("y", "f32", "[rows, n] output"),
        integer("rows", "rows of x and y"),
        integer("n", "output columns"),
        integer("k", "input columns"),
    ),
    tiles=lambda a: -(-a.n // COLUMNS),
    access=access,
    valid=valid,
    order="column after column of k; on a GPU by fused multiply-adds",
    folder=Path(__file__).parent,
)
