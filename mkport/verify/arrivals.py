"""Checks what arrives: every tile runs exactly once, every wait wants exactly what is signalled."""

import numpy as np

from mkport.verify.footprint import Footprint
from mkport.verify.records import Records
from mkport.verify.report import MAX_PROBLEMS, Problem

MAX_SIGNALS = 2**31 - 1  # of one counter in one step: a wait compares the sign of a difference


def owners(records: Records, foot: Footprint) -> tuple[np.ndarray, np.ndarray, list[Problem]]:
    """Which record runs each tile.

    Returns the record of each tile (int64 [tiles of all nodes], -1 for none), where a node's tiles
    start in it (int64 [nodes + 1]), and the tiles that run never or twice.
    """
    start = np.concatenate([[0], np.cumsum(foot.tiles)])
    first, stride, count = records.run.T
    runner = np.repeat(np.arange(len(records)), count)
    nth = np.arange(len(runner)) - np.repeat(np.cumsum(count) - count, count)
    tile = (start[records.node] + first)[runner] + stride[runner] * nth
    owner = np.full(start[-1], -1, np.int64)
    owner[tile] = runner
    problems: list[Problem] = []
    if len(tile) != start[-1] or (owner < 0).any():
        problems += _twice(records, foot, start, tile, runner)
        problems += _never(foot, start, owner)
    alone = np.flatnonzero(foot.tiles == 0)  # joins
    times = np.bincount(records.node, minlength=len(foot.tiles))[alone]
    problems += [
        Problem(
            "coverage",
            f"{foot.graph.nodes[n].label} has no tiles and needs exactly one record, but has "
            f"{times[i]}: {'add one' if times[i] == 0 else 'remove the others'}.",
            records=tuple(records.place(int(r)) for r in np.flatnonzero(records.node == n)),
        )
        for i, n in enumerate(alone)
        if times[i] != 1
    ]
    return owner, start, problems


def _twice(
    records: Records, foot: Footprint, start: np.ndarray, tile: np.ndarray, runner: np.ndarray
) -> list[Problem]:
    order = np.argsort(tile, kind="stable")
    again = np.flatnonzero(tile[order][1:] == tile[order][:-1])
    problems = []
    for i in again[:MAX_PROBLEMS]:
        one, two = int(runner[order[i]]), int(runner[order[i + 1]])
        at = int(tile[order[i]])
        node = int(np.searchsorted(start, at, side="right")) - 1
        problems.append(
            Problem(
                "coverage",
                f"{foot.graph.nodes[node].label} tile {at - start[node]} runs twice: in "
                f"{records.describe(one)} and in {records.describe(two)}: take it out of one.",
                records=(records.place(one), records.place(two)),
            )
        )
    return problems


def _never(foot: Footprint, start: np.ndarray, owner: np.ndarray) -> list[Problem]:
    problems = []
    for at in np.flatnonzero(owner < 0)[:MAX_PROBLEMS]:
        node = int(np.searchsorted(start, at, side="right")) - 1
        problems.append(
            Problem(
                "coverage",
                f"{foot.graph.nodes[node].label} tile {at - start[node]} is in no record: "
                "add it to a run.",
            )
        )
    return problems


def arrival_problems(records: Records) -> list[Problem]:
    """Waits that do not want the sum of the step's signals, and sums that no compare can hold."""
    counters = records.schedule.counters
    counter, amount = records.signal.T
    signals = counter >= 0
    total = np.zeros(counters, np.int64)
    np.add.at(total, counter[signals], amount[signals])
    problems = [
        Problem(
            "target",
            f"the signals of counter {c} add up to {total[c]} in a step, but at most {MAX_SIGNALS} "
            "can be told apart from a step that has not happened yet: use smaller amounts.",
        )
        for c in np.flatnonzero(total > MAX_SIGNALS)
    ]
    wanted, target = records.waits[:, :, 0], records.waits[:, :, 1]
    waiting = wanted >= 0
    bad = waiting.copy()
    bad[waiting] = target[waiting] != total[wanted[waiting]]
    for r, slot in np.argwhere(bad)[:MAX_PROBLEMS]:
        c = int(wanted[r, slot])
        problems.append(_mismatch(records, int(r), c, int(target[r, slot]), int(total[c])))
    return problems


def _mismatch(records: Records, waiter: int, counter: int, target: int, total: int) -> Problem:
    """Names, where it can, a record that should signal the counter and does not."""
    signallers = np.flatnonzero(records.signal[:, 0] == counter)
    siblings = np.isin(records.node, records.node[signallers])
    silent = np.flatnonzero(siblings & (records.signal[:, 0] != counter))
    text = (
        f"{records.describe(waiter)} waits for {target} on counter {counter}, but the signals that "
        f"reach it in a step add up to {total}: it would "
        + ("wait for ever" if target > total else "start before all of them")
    )
    if target > total and len(silent):
        other = int(silent[0])
        return Problem(
            "target",
            f"{text}. {records.describe(other)} must happen before it and signals nothing there: "
            f"add a signal on counter {counter} to it.",
            records=(records.place(waiter), records.place(other)),
            edge=(records.place(other), records.place(waiter)),
        )
    named = (
        f" The last of them is {records.describe(int(signallers[-1]))}." if len(signallers) else ""
    )
    return Problem(
        "target",
        f"{text}.{named} "
        + (f"Set the target to {total}." if total else "Wait on a counter that is signalled."),
        records=tuple(records.place(int(r)) for r in (waiter, *signallers[-1:])),
    )
