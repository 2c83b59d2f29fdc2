"""Runs all checks on a schedule, in an order in which each may rely on the ones before it.

A schedule that passes cannot hang and gives the bits of program order, whatever the timing: every
wait is met exactly, no records wait in a circle, and whenever two tiles meet in an element that one
of them writes, the one of the earlier node happens before. Happens-before is the transitive closure
of list order and of waits (after all signals of the counter). A word of a flagged tensor needs no
such order: the later tile awaits the word.
"""

import time

import numpy as np

from mkport.plan.schedule import Schedule
from mkport.verify.arrivals import arrival_problems, owners
from mkport.verify.clocks import clocks
from mkport.verify.flagged import flagged_problems, order_problems
from mkport.verify.footprint import Footprint
from mkport.verify.races import race_problems
from mkport.verify.records import list_problems, record_problems, stack
from mkport.verify.report import Problem, Refused, Report
from mkport.verify.tiles import tile_problems


def verify(
    schedule: Schedule, resident: int | None = None, footprint: Footprint | None = None
) -> Report:
    """Proves a schedule safe, for every routing and every set of lengths at once.

    `resident` is how many workers the machine can run at the same time, where that is known.
    `footprint` is `Footprint.of(schedule.graph)`, for callers that verify many schedules of one
    graph. Raises `Refused`, whose `problems` name the records, the tensor tile and the missing
    edge.
    """
    began = time.perf_counter()
    foot = Footprint.of(schedule.graph) if footprint is None else footprint
    problems = [*_resident(schedule, resident), *foot.problems, *list_problems(schedule)]
    _refuse(problems)
    records = stack(schedule)
    _refuse(record_problems(records, foot))
    owner, start, problems = owners(records, foot)
    problems += arrival_problems(records)
    clock, circle = clocks(records)
    problems += circle + tile_problems(foot)
    _refuse(problems + flagged_problems(foot) + order_problems(records, foot))
    checks, problems = race_problems(records, foot, owner, start, clock)
    _refuse(problems)
    return Report(
        records=len(records),
        workers=schedule.workers,
        counters=schedule.counters,
        edges=_edges(records.start, records.waits[:, :, 0], records.signal[:, 0]),
        atoms=foot.atoms,
        checks=checks,
        seconds=time.perf_counter() - began,
    )


def _resident(schedule: Schedule, resident: int | None) -> list[Problem]:
    if resident is None or schedule.workers <= resident:
        return []
    return [
        Problem(
            "workers",
            f"the schedule is dealt to {schedule.workers} workers, but only {resident} can run at "
            "the same time here, and the running ones could wait for ever for the others: deal it "
            f"to at most {resident} workers.",
        )
    ]


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise Refused(problems)


def _edges(start: np.ndarray, waits: np.ndarray, signal: np.ndarray) -> int:
    """Neighbours in a list, and every signal with every wait on its counter."""
    signals = np.bincount(signal[signal >= 0], minlength=1 + max(0, int(waits.max(initial=0))))
    lists = int(np.maximum(np.diff(start) - 1, 0).sum())
    return lists + int(signals[waits[waits >= 0]].sum())
