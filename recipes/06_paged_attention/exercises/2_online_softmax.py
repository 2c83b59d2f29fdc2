"""The online softmax.

Walk over the keys in blocks of 16 and keep three things: the largest score so far, the sum of
weights so far, and the sums of weighted values, all measured against the largest score. Each
block may bring a larger one; then repair what you have.

Scores reach several hundred here, so exponentials of scores themselves overflow.
"""

import numpy as np

BLOCK = 16


def attend(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """(sums [width], largest score, sum of weights) of one query over keys and values [n, width].

    The attention's result is sums / sum of weights.
    """
    sums, largest, total = np.zeros(values.shape[1]), -np.inf, 0.0
    for first in range(0, len(keys), BLOCK):
        scores = keys[first : first + BLOCK] @ query
        # blank: the new largest, the weights, the repair, then both sums
        new = max(largest, scores.max())
        weights = np.exp(scores - new)
        repair = np.exp(largest - new)
        sums = sums * repair + weights @ values[first : first + BLOCK]
        total = total * repair + weights.sum()
        largest = new
        # end
    return sums, largest, total


# === check
HINT = "Multiply sums and total by exp(old largest - new largest) before you add the block's."
READ = "The same, a block at a time"
WRONG = ("sums = sums * repair + ", "sums = sums + ")


def check(yours, report):
    """Small scores, large scores, the largest first and last."""
    rng = np.random.default_rng(0)
    for name, size in (("small scores", 1.0), ("large scores", 60.0)):
        query = rng.standard_normal(8) * size
        keys, values = rng.standard_normal((2, 50, 8))
        scores = keys @ query
        for way, order in (("as they come", range(50)), ("ascending", np.argsort(scores))):
            k, v = keys[list(order)], values[list(order)]
            sums, largest, total = yours.attend(query, k, v)
            weights = np.exp(scores - scores.max())
            truth = (weights @ values) / weights.sum()
            report.holds(
                f"{name}, {way}: the largest", np.isclose(largest, scores.max()), f"{largest}"
            )
            report.array(f"{name}, {way}", sums / total, truth, truth.astype(np.float32))
