"""Tiles of a record.

A record names its tiles by three numbers: the first tile, the stride, and how many there are.
Dealt in "blocks" each of W workers gets neighbouring tiles; dealt "strided", every W-th.

Say what (first, stride, count) worker w gets of T tiles in the strided deal, and list the tiles
of a run. Every tile must be run exactly once.
"""


def strided(tiles: int, workers: int, worker: int) -> tuple[int, int, int]:
    """(first, stride, count) of one worker; there are at least as many tiles as workers."""
    # blank
    return worker, workers, (tiles - worker + workers - 1) // workers
    # end


def tiles_of(first: int, stride: int, count: int) -> list[int]:
    """The tiles of a run, in order."""
    # blank
    return [first + i * stride for i in range(count)]
    # end


# === check
HINT = "Worker w starts at w and takes every `workers`-th; count them with a rounded up division."
READ = "The declaration"
WRONG = ("workers - 1) // workers", "workers) // workers")


def check(yours, report):
    """All tiles once, for many numbers of tiles and workers."""
    for tiles in range(1, 40):
        for workers in range(1, min(tiles, 9) + 1):
            runs = [yours.strided(tiles, workers, w) for w in range(workers)]
            got = [yours.tiles_of(*run) for run in runs]
            once = sorted(t for part in got for t in part) == list(range(tiles))
            if not once:
                report.holds(f"{tiles} tiles, {workers} workers", False, f"the tiles are {got}")
    report.equal("7 tiles, worker 1 of 3", yours.tiles_of(*yours.strided(7, 3, 1)), [1, 4])
    report.holds("every tile runs exactly once", True, "")
