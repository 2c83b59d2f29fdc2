"""Join splits.

Each split of the keys gives sums, a largest score m and a sum of weights l. Join all splits of a
query into the attention's result. A split that saw no key at all has l = 0 and m = -inf, and its
sums are garbage (NaN): leave it out. At least one split saw something.

Join in the order of the splits, so that the bits do not depend on who was ready first.
"""

import numpy as np


def join(sums: np.ndarray, m: np.ndarray, l: np.ndarray) -> np.ndarray:  # noqa: E741
    """The result [width] from sums [splits, width], m [splits] and l [splits]."""
    # blank: factors against the largest m, then the two sums over splits that saw a key
    largest = m.max()
    out, total = np.zeros(sums.shape[1]), 0.0
    for s in range(len(m)):
        if l[s] > 0:
            factor = np.exp(m[s] - largest)
            out += sums[s] * factor
            total += l[s] * factor
    return out / total
    # end


# === check
HINT = "exp(m[s] - m.max()) brings split s to the common measure; skip those with l[s] == 0."
READ = "Splits that can be joined"
WRONG = ("if l[s] > 0:", "if True:")


def check(yours, report):
    """Seven splits, two of them empty and one of a single key; scores too large to be exponents."""
    rng = np.random.default_rng(0)
    scores, values = 400 + 30 * rng.standard_normal(70), rng.standard_normal((70, 8))
    sums, m, total = np.full((7, 8), np.nan), np.full(7, -np.inf), np.zeros(7)
    for s, first, end in ((0, 0, 14), (1, 14, 31), (3, 31, 32), (4, 32, 56), (6, 56, 70)):
        part = slice(first, end)
        m[s] = scores[part].max()
        weights = np.exp(scores[part] - m[s])
        sums[s], total[s] = weights @ values[part], weights.sum()
    weights = np.exp(scores - scores.max())
    truth = weights @ values / weights.sum()
    report.array("joined", yours.join(sums, m, total), truth, truth.astype(np.float32))
