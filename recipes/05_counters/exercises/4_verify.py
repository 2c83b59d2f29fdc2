"""A small verifier.

Each worker has a list of records. A record is (name, waits, signal): the waits are (counter,
target) pairs, the signal is (counter, amount) or None; a counter is a number. Within a list
records run in order.

Find out whether everybody will get through, whatever the timing. Since signals only ever help, it
is enough to try one order: again and again let any worker go on that can, until nobody can.
Return the names of the records that worker lists are stuck at, sorted; an empty list means that
all is well.
"""

Record = tuple[str, list[tuple[int, int]], tuple[int, int] | None]


def stuck(lists: list[list[Record]]) -> list[str]:
    """Names of the records at which workers wait for ever."""
    counters: dict[int, int] = {}
    at = [0] * len(lists)
    moved = True
    while moved:
        moved = False
        for worker, records in enumerate(lists):
            while at[worker] < len(records):
                _, waits, signal = records[at[worker]]
                # blank: leave the inner loop if a wait is not over; else signal and go on
                if any(counters.get(counter, 0) < target for counter, target in waits):
                    break
                if signal is not None:
                    counters[signal[0]] = counters.get(signal[0], 0) + signal[1]
                at[worker] += 1
                moved = True
                # end
    return sorted(records[at[w]][0] for w, records in enumerate(lists) if at[w] < len(records))


# === check
HINT = "Compare counters.get(counter, 0) with each target; if all are reached, signal and move on."
READ = "Why it cannot deadlock"
WRONG = ("counters.get(counter, 0) < target", "counters.get(counter, 0) <= target")


def check(yours, report):
    """A good one, a lost signal, a target too high, a circle."""
    a, b = ("a", [], (0, 2)), ("b", [], (0, 1))
    c, d = ("c", [(0, 3)], (1, 1)), ("d", [(1, 1)], None)
    report.equal("a step that gets through", yours.stuck([[a, d], [b, c]]), [])
    lost = ("b", [], None)
    report.equal("a lost signal", yours.stuck([[a, d], [lost, c]]), ["c", "d"])
    high = ("c", [(0, 4)], (1, 1))
    report.equal("a target too high", yours.stuck([[a, d], [b, high]]), ["c", "d"])
    circle = [[("x", [(1, 1)], (0, 1))], [("y", [(0, 1)], (1, 1))]]
    report.equal("a circle", yours.stuck(circle), ["x", "y"])
    long = [
        [(f"n{i}", [(i - 1, 1)] if i else [], (i, 1)) for i in range(w, 60, 3)] for w in range(3)
    ]
    report.equal("a chain over three workers", yours.stuck(long), [])
