"""Happens-before of a schedule, as one vector clock a record, or the circle that forbids it.

`clock[r, w]` says how many records of worker w's list have ended when record r begins, r itself
counted: list order and waits (a wait ends after all signals of its counter) and nothing else. So
"a happens before b" is one comparison, and the memory is records x workers x 4 bytes.
"""

import numpy as np
from numba import njit

from mkport.verify.records import Records
from mkport.verify.report import Problem


def clocks(records: Records) -> tuple[np.ndarray, list[Problem]]:
    """The clocks, int32 [records, workers], and a circle of records that wait for each other.

    The records must have passed `record_problems`. Source: vector clocks, Fidge 1988 and Mattern
    1989; here of a schedule, not of a run.
    """
    waits = np.ascontiguousarray(records.waits[:, :, 0])
    signal = np.ascontiguousarray(records.signal[:, 0])
    clock, at = _run(waits, signal, records.start, records.schedule.counters)
    stuck = at < records.start[1:]
    if not stuck.any():
        return clock, []
    return clock, [_circle(records, at, int(stuck.argmax()))]


@njit(cache=True)
def _run(waits, signal, start, counters):  # type: ignore[no-untyped-def]
    """Lets every worker go as far as it can; `at` is where each stopped."""
    workers = len(start) - 1
    clock = np.zeros((len(signal), workers), np.int32)
    arrived = np.zeros((counters, workers), np.int32)  # what a wait on the counter knows
    missing = np.zeros(counters, np.int64)
    for c in signal:
        if c >= 0:
            missing[c] += 1
    at = start[:-1].copy()
    sleeper = np.full(counters, -1, np.int64)  # a linked list of workers asleep on each counter
    behind = np.full(workers, -1, np.int64)
    awake = np.arange(workers)[::-1].copy()
    n = workers
    while n > 0:
        n -= 1
        w = awake[n]
        while at[w] < start[w + 1]:
            r = at[w]
            asleep = False
            for c in waits[r]:
                if c >= 0 and missing[c] > 0:
                    behind[w] = sleeper[c]
                    sleeper[c] = w
                    asleep = True
                    break
            if asleep:
                break
            if r > start[w]:
                clock[r] = clock[r - 1]
            for c in waits[r]:
                if c >= 0:
                    for v in range(workers):
                        clock[r, v] = max(clock[r, v], arrived[c, v])
            clock[r, w] = r - start[w] + 1
            c = signal[r]
            if c >= 0:
                for v in range(workers):
                    arrived[c, v] = max(arrived[c, v], clock[r, v])
                missing[c] -= 1
                if missing[c] == 0:
                    v = sleeper[c]
                    while v >= 0:
                        awake[n] = v
                        n += 1
                        v = behind[v]
                    sleeper[c] = -1
            at[w] += 1
    return clock, at


def _circle(records: Records, at: np.ndarray, worker: int) -> Problem:
    """Follows who waits for whom from a stuck worker until a worker comes round again."""
    signal = records.signal[:, 0]
    ahead = np.arange(len(records)) >= at[records.worker]  # has not run
    path: list[tuple[int, int, int]] = []  # (waiting record, counter, record that signals it)
    visited: dict[int, int] = {}
    while worker not in visited:
        visited[worker] = len(path)
        waiting = int(at[worker])
        for counter in records.waits[waiting, :, 0]:
            missing = np.flatnonzero(ahead & (signal == counter))
            if counter >= 0 and len(missing):
                path.append((waiting, int(counter), int(missing[0])))
                worker = int(records.worker[missing[0]])
                break
    path = path[visited[worker] :]
    steps, places = [], []
    for i, (waiting, counter, late) in enumerate(path):
        steps.append(f"{records.describe(waiting)} waits on counter {counter}, which")
        places.append(records.place(waiting))
        steps[-1] += f" {records.describe(late)} signals"
        following = path[(i + 1) % len(path)][0]
        if following != late:
            steps.append(f"that record comes after {records.describe(following)} in its list")
            places.append(records.place(late))
    return Problem(
        "cycle",
        f"records wait for each other in a circle: {'; '.join(steps)}. No worker of them could "
        "ever move: put every list into program order, or remove one of the waits.",
        records=tuple(places),
    )
