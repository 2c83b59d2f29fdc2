"""Find a key.

Keys lie in pages: `pages` is [pages, page, width]. The page table `table` is [sequences, pages of
a sequence] and says which physical page holds each logical one. Return the keys of one sequence
from position `first` up to, but without, position `end`. Never touch a page that the positions do
not need: the entries of the table behind them are garbage.
"""

import numpy as np


def keys_of(
    pages: np.ndarray, table: np.ndarray, sequence: int, first: int, end: int
) -> np.ndarray:
    """Keys [end - first, width] of a sequence, in order of position."""
    page = pages.shape[1]
    # blank
    positions = np.arange(first, end)
    return pages[table[sequence, positions // page], positions % page]
    # end


# === check
HINT = "Position p is row p % page of the physical page table[sequence, p // page]."
READ = "Pages"
WRONG = ("positions % page]", "(positions - first) % page]")


def check(yours, report):
    """Three sequences over shuffled pages; the rest of table and memory is garbage."""
    rng = np.random.default_rng(0)
    lengths = (5, 40, 17)
    pages = np.full((30, 8, 4), np.nan, np.float32)
    table = np.full((3, 9), 10**6)
    order = iter(rng.permutation(30))
    truth = [rng.standard_normal((n, 4), np.float32) for n in lengths]
    for s, keys in enumerate(truth):
        for p in range(len(keys)):
            if p % 8 == 0:
                table[s, p // 8] = next(order)
            pages[table[s, p // 8], p % 8] = keys[p]
    for s, first, end in ((0, 0, 5), (1, 0, 40), (1, 13, 29), (2, 16, 17)):
        got = yours.keys_of(pages, table, s, first, end)
        report.array(
            f"sequence {s}, positions {first}..{end - 1}", got, truth[s][first:end], tile=(8, 4)
        )
