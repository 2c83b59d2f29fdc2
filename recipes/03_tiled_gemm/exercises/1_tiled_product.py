"""A tiled product.

Compute `y = x w^T` tile by tile: a tile is 16 rows of the weight, that is 16 columns of y, for
all tokens. The last tile may have fewer. The function computes one tile; the check calls it for
every tile in a random order, as workers would.
"""

import numpy as np

TILE = 16


def tiles(w: np.ndarray) -> int:
    """How many tiles the product has; w is [n, k]."""
    # blank
    return -(-len(w) // TILE)
    # end


def product(x: np.ndarray, w: np.ndarray, y: np.ndarray, tile: int) -> None:
    """Writes this tile's columns of y [tokens, n]; x is [tokens, k], w [n, k]."""
    # blank: the tile's first column and its end, then the product
    begin = tile * TILE
    end = min(begin + TILE, len(w))
    y[:, begin:end] = x @ w[begin:end].T
    # end


# === check
HINT = "Rows `tile * 16` up to 16 more of w, but not beyond len(w); NumPy's `@` does the rest."
READ = "Rung 2: tiles"
WRONG = ("begin = tile * TILE", "begin = tile * TILE + 1")


def check(yours, report):
    """Shapes that do and do not divide by 16; y starts as NaN."""
    rng = np.random.default_rng(0)
    for tokens, n, k in ((1, 64, 32), (5, 77, 48)):
        x = rng.standard_normal((tokens, k), np.float32)
        w = rng.standard_normal((n, k), np.float32)
        y = np.full((tokens, n), np.nan, np.float32)
        report.equal(f"tiles of {n} rows", yours.tiles(w), -(-n // TILE))
        for tile in rng.permutation(-(-n // TILE)):
            before = y.copy()
            yours.product(x, w, y, int(tile))
            changed = np.flatnonzero(~((y == before) | np.isnan(y)).all(axis=0))
            columns = f"columns {changed.min()} to {changed.max()}" if len(changed) else "nothing"
            own = bool((changed // TILE == tile).all())
            report.holds(f"tile {tile} writes within its columns", own, f"it wrote {columns}")
        truth = x.astype(np.float64) @ w.T.astype(np.float64)
        report.array(f"x w^T of {tokens} x {n} x {k}", y, truth, x @ w.T, (tokens, TILE))
