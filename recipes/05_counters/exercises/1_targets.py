"""Waits and targets by hand.

Four nodes: `a` has 5 tiles, `b` and `c` have 3 and 4 and both read what a writes, `d` has 2 and
reads what b and c write. Every node has a counter of its own, named like it, and each of its
records signals there with its number of tiles. Tiles are dealt to any number of workers.

Write down which (counter, target) pairs the records of each node wait for.
"""

TILES = {"a": 5, "b": 3, "c": 4, "d": 2}


def waits() -> dict[str, list[tuple[str, int]]]:
    """For each node the counters that its records wait for, with their targets."""
    # blank: a list for each node
    return {"a": [], "b": [("a", 5)], "c": [("a", 5)], "d": [("b", 3), ("c", 4)]}
    # end


# === check
HINT = "All tiles of a must be there, however they were dealt: the target is a's number of tiles."
READ = "A chain"
WRONG = ('("c", 4)', '("c", 3)')


def check(yours, report):
    """Runs the four nodes with the waits on 1 to 4 workers in random orders."""
    import random

    reads = {"a": "", "b": "a", "c": "a", "d": "bc"}
    waits = yours.waits()
    report.equal("the nodes", sorted(waits), sorted(TILES))
    for workers in range(1, 5):
        lists: list[list[tuple[str, int]]] = [[] for _ in range(workers)]
        for node, tiles in TILES.items():
            for worker in range(min(workers, tiles)):
                count = len(range(worker, tiles, min(workers, tiles)))
                lists[worker].append((node, count))
        for seed in range(30):
            _one_order(waits, lists, random.Random(seed), reads, report)
    report.holds("1 to 4 workers, 30 orders each", True, "")


def _one_order(waits, lists, dice, reads, report):
    counters, done = dict.fromkeys(TILES, 0), dict.fromkeys(TILES, 0)
    at = [0] * len(lists)
    left = sum(map(len, lists))
    while left:
        able = [
            w
            for w, records in enumerate(lists)
            if at[w] < len(records)
            and all(counters[c] >= target for c, target in waits[records[at[w]][0]])
        ]
        if not able:
            stuck = [records[at[w]][0] for w, records in enumerate(lists) if at[w] < len(records)]
            report.holds("nobody hangs", False, f"{stuck} wait for ever; counters {counters}")
        worker = dice.choice(able)
        node, count = lists[worker][at[worker]]
        for need in reads[node]:
            ready = done[need] == TILES[need]
            if not ready:
                told = f"{node} ran when {done[need]} of {TILES[need]} tiles of {need} were there"
                report.holds("nobody reads too early", False, told)
        done[node] += count
        counters[node] += count
        at[worker] += 1
        left -= 1
