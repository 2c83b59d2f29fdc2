"""Group by expert.

`ids` [tokens, k] holds each token's experts; -1 is nobody. Pair p stands for token p // k and
choice p % k. Return the pairs sorted by expert, and by p within an expert, and the slots: for
each distinct expert, ascending, (expert, place of its first pair). Behind the used slots come
empty ones, (-1, number of pairs), so that there are `slot_count` + 1 in all: a slot's pairs end
where the next slot's begin.
"""

import numpy as np


def group(ids: np.ndarray, slot_count: int) -> tuple[np.ndarray, np.ndarray]:
    """(pairs int [used pairs], slots int [slot_count + 1, 2])."""
    flat = ids.ravel()
    # blank: the sorted pairs, without those of nobody
    order = np.argsort(flat, kind="stable")
    pairs = order[flat[order] >= 0]
    # end
    slots = np.full((slot_count + 1, 2), (-1, len(pairs)))
    # blank: one slot for each distinct expert
    experts, first = np.unique(flat[pairs], return_index=True)
    slots[: len(experts), 0] = experts
    slots[: len(experts), 1] = first
    # end
    return pairs, slots


# === check
HINT = "np.unique(..., return_index=True) of the sorted experts gives each one and its first place."
READ = "Grouping by expert"
WRONG = ("flat[order] >= 0", "flat[order] >= -1")


def check(yours, report):
    """Random choices, all to one expert, rows without experts."""
    rng = np.random.default_rng(0)
    cases = {"random": np.stack([rng.permutation(9)[:3] for _ in range(5)])}
    cases["all to one"] = np.full((4, 1), 7)
    cases["two rows of nobody"] = np.where(np.arange(5)[:, None] % 3 == 1, -1, cases["random"])
    for name, ids in cases.items():
        count = min(9, ids.size)
        pairs, slots = yours.group(ids, count)
        wanted = group(ids, count)
        report.array(f"{name}: pairs", np.asarray(pairs), wanted[0])
        report.array(f"{name}: slots", np.asarray(slots), wanted[1], tile=(1, 2))
