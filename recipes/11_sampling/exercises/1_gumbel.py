"""Draw with Gumbel noise.

Turn uniform numbers u in (0, 1) into Gumbel noise, -log(-log(u)), add it to the logits divided by
the temperature, and take the largest: the lowest token wins among equals. A token at -inf never
wins. At temperature 0 there is no noise.

Draw for one row; the check counts over many rows and compares with the softmax.
"""

import numpy as np


def draw(logits: np.ndarray, temperature: float, u: np.ndarray) -> int:
    """The token: logits and u are [vocabulary]."""
    # blank
    if temperature == 0:
        return int(np.argmax(logits))
    return int(np.argmax(logits / temperature - np.log(-np.log(u))))
    # end


# === check
HINT = "np.argmax takes the first of equal values; the noise is -np.log(-np.log(u))."
READ = "Drawing with noise"
WRONG = ("- np.log(-np.log(u))", "+ u")


def check(yours, report):
    """Twenty thousand draws at two temperatures."""
    rng = np.random.default_rng(0)
    logits = np.array([1.0, 0.0, -np.inf, 2.0, -1.0])
    report.equal("temperature 0", yours.draw(logits, 0.0, rng.random(5)), 3)
    for temperature in (0.7, 1.5):
        odds = np.exp(logits / temperature)
        odds /= odds.sum()
        drawn = np.bincount(
            [yours.draw(logits, temperature, rng.random(5)) for _ in range(20_000)], minlength=5
        )
        off = float(np.abs(drawn / drawn.sum() - odds).max())
        told = f"drawn {(drawn / drawn.sum()).round(3)}, wanted {odds.round(3)}"
        report.holds(f"temperature {temperature}: the softmax", off < 0.02, told)
