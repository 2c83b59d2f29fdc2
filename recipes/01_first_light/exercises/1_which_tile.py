"""Which tile holds an element?

A product has an output of many rows and columns, and it is worked on in tiles of 16 rows by 16
columns. Tiles are numbered row by row: the first row of tiles is 0, 1, 2, ..., and then the next
row goes on. The last tile of a row may be cut off, since the columns need not be a multiple of
16.

Say which tile an element is in, and where inside the tile it is.
"""

TILE = 16


def tile_of(row: int, column: int, columns: int) -> tuple[int, int, int]:
    """(tile, row within the tile, column within the tile) of an element of a matrix with so many
    columns."""
    across = -(-columns // TILE)  # tiles in a row of tiles, the cut off one too
    # blank: three numbers, with // and %
    tile = row // TILE * across + column // TILE
    return tile, row % TILE, column % TILE
    # end


# === check
HINT = "`row // TILE` is the row of tiles, and each one before it has `across` tiles."
READ = "What to do: a graph"
WRONG = ("row // TILE * across", "row // TILE * columns")


def check(yours, report):
    """Every element of a matrix that is not a multiple of 16 wide."""
    import numpy as np

    rows, columns = 40, 72
    report.equal("the first element", yours.tile_of(0, 0, columns), (0, 0, 0))
    got = np.array([[yours.tile_of(r, c, columns)[0] for c in range(columns)] for r in range(rows)])
    wanted = np.repeat(np.repeat(np.arange(15).reshape(3, 5), TILE, 0), TILE, 1)[:rows, :columns]
    report.array("the tile of every element", got, wanted, tile=(TILE, TILE))
    report.equal("element [33, 70]", yours.tile_of(33, 70, columns), (14, 1, 6))
