"""Slices, chains and the order of additions.

The declared order of the product: the k columns are cut into slices of 16. Slice i is added, lane
by lane, to chain i % 4, so there are four chains of sixteen sums. At the end the chains are
joined as (0 + 1) + (2 + 3), and the sixteen lanes in halves: lane i gets lane i + 8, then i + 4,
then i + 2, then i + 1.

All in float32, with a separate rounding of product and sum here. The check compares bits, so
another order fails even where it is as exact.
"""

import numpy as np


def dot(x: np.ndarray, w: np.ndarray) -> np.float32:
    """The dot product of two float32 vectors whose length is a multiple of 16."""
    chains = np.zeros((4, 16), np.float32)
    # blank: add each slice to its chain
    for i in range(len(x) // 16):
        chains[i % 4] += x[16 * i : 16 * i + 16] * w[16 * i : 16 * i + 16]
    # end
    # blank: join the chains, then the lanes
    lanes = (chains[0] + chains[1]) + (chains[2] + chains[3])
    for half in (8, 4, 2, 1):
        lanes[:half] += lanes[half : 2 * half]
    return lanes[0]
    # end


# === check
HINT = "chains[i % 4] += x[slice] * w[slice]; then lanes[:half] += lanes[half:2 * half]."
READ = "Rung 3: four chains"
WRONG = ("chains[i % 4]", "chains[i // 4 % 4]")


def check(yours, report):
    """Bits, over several lengths."""
    rng = np.random.default_rng(0)
    for k in (16, 64, 80, 576):
        x, w = rng.standard_normal((2, k), np.float32)
        got, wanted = np.float32(yours.dot(x, w)), dot(x, w)
        near = abs(float(got) - float(x.astype(np.float64) @ w)) < 1e-3
        report.holds(f"k = {k}: a dot product", near, f"yours is {got}, wanted {wanted}")
        report.equal(f"k = {k}: the same bits", got.tobytes().hex(), wanted.tobytes().hex())
