"""Rotate by the position.

A rotary embedding turns pairs of numbers of a query or key by an angle that grows with the
position, so that a score depends on how far apart two tokens are. In the half-split form pair i
is (i, i + d / 2), and its angle at position p is p times theta to the power of -2 i / d.

Rotate one head. Then see that the score of a rotated query and a rotated key does not change when
both positions move by the same amount: the check looks at that too.
"""

import numpy as np


def rotate(head: np.ndarray, position: int, theta: float = 10000.0) -> np.ndarray:
    """The head [d] at this position."""
    half = len(head) // 2
    # blank: the angles, then both halves
    angle = position * theta ** (-2 * np.arange(half) / len(head))
    a, b = head[:half], head[half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin])
    # end


# === check
HINT = "(a, b) turned by t is (a cos t - b sin t, b cos t + a sin t), for all pairs at once."
READ = "The oracle's verdict"
WRONG = ("b * cos + a", "b * cos - a")


def check(yours, report):
    """Against complex multiplication; then the property it is for."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 32))
    for position in (0, 1, 77):
        turned = (q[:16] + 1j * q[16:]) * np.exp(1j * position * 10000.0 ** (-np.arange(16) / 16))
        truth = np.concatenate([turned.real, turned.imag])
        report.array(f"position {position}", yours.rotate(q, position), truth)
    score = yours.rotate(q, 40) @ yours.rotate(k, 33)
    moved = yours.rotate(q, 107) @ yours.rotate(k, 100)
    report.holds("only the distance counts", np.isclose(score, moved), f"{score} and {moved}")
