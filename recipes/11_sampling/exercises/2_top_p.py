"""Top-p.

Keep the fewest tokens whose probabilities together reach p: sort by probability, lower tokens
first among equals, and take tokens until the sum is at least p. At least one is always kept.
Return their ids, ascending.
"""

import numpy as np


def nucleus(probabilities: np.ndarray, p: float) -> list[int]:
    """The ids that top-p leaves; the probabilities add up to 1."""
    # blank
    order = np.argsort(-probabilities, kind="stable")
    sums = np.cumsum(probabilities[order])
    return sorted(int(i) for i in order[: int(np.searchsorted(sums, p)) + 1])
    # end


# === check
HINT = "np.cumsum of the sorted probabilities; np.searchsorted finds where the sum reaches p."
READ = "From logits to odds"
WRONG = ("np.searchsorted(sums, p)) + 1", "np.searchsorted(sums, p))")


def check(yours, report):
    """By hand, then random rows against the engine's own."""
    row = np.array([0.125, 0.5, 0.25, 0.125])
    report.equal("p = 0.4", yours.nucleus(row, 0.4), [1])
    report.equal("p = 0.6", yours.nucleus(row, 0.6), [1, 2])
    report.equal("p = 0.8", yours.nucleus(row, 0.8), [0, 1, 2])
    from mkport.engine.truncation import survivors

    rng = np.random.default_rng(0)
    for _ in range(50):
        scores = rng.standard_normal(30).astype(np.float32)
        odds = np.exp(scores.astype(np.float64))
        got = yours.nucleus(odds / odds.sum(), 0.7)
        wanted = survivors(scores, 0.0, 0, 0.7).tolist()
        if got != wanted:
            report.equal("a random row", got, wanted)
    report.holds("50 random rows, as the engine does it", True, "")
