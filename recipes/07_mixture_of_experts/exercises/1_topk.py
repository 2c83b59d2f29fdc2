"""Top-k routing.

For each token choose the k experts with the highest scores, best first; of equal scores the
expert with the lower number comes first. Their weights are a softmax over *all* experts' scores,
taken at the chosen ones, then divided by their sum. A row with a score that is not finite chooses
nobody: its ids are -1 and its weights NaN.
"""

import numpy as np


def route(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(ids int32, weights float32), both [tokens, k], from float32 scores [tokens, experts]."""
    ids = np.full((len(scores), k), -1, np.int32)
    weights = np.full((len(scores), k), np.nan, np.float32)
    for token, row in enumerate(scores):
        if not np.isfinite(row).all():
            continue
        # blank: ids, then weights
        ids[token] = np.argsort(-row, kind="stable")[:k]
        odds = np.exp(row - row.max())
        best = odds[ids[token]] / odds.sum()
        weights[token] = best / best.sum()
        # end
    return ids, weights


# === check
HINT = "np.argsort of the negated row, with kind='stable', keeps equal scores in order."
READ = "The router chooses"
WRONG = ("weights[token] = best / best.sum()", "weights[token] = best")


def check(yours, report):
    """Random scores, ties everywhere, a row with NaN, a row of scores too large to be exponents."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((6, 16)).astype(np.float32)
    scores[2:4] = rng.integers(0, 3, (2, 16))
    scores[4, 5] = np.nan
    scores[5] += 100
    ids, weights = yours.route(scores, 4)
    wanted, exact = route(scores, 4)
    report.array("ids", ids, wanted, tile=(1, 4))
    report.array("weights", weights, exact.astype(np.float64), exact, (1, 4))
