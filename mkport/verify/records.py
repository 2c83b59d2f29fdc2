"""Checks each record by itself: could a planner have made it from this graph?

What passes here is safe to index with, so the later checks need no bounds of their own.
"""

from dataclasses import dataclass

import numpy as np

from mkport.declare import RECORD, RECORD_WORDS
from mkport.declare.record import MAX_WAITS, NO_COUNTER
from mkport.plan.schedule import Schedule
from mkport.verify.footprint import Footprint
from mkport.verify.report import MAX_PROBLEMS, Place, Problem

_OP, _NODE = RECORD["op"].first, RECORD["node"].first
_WAITS, _SIGNAL, _RUN, _ARGS = (RECORD[name] for name in ("waits", "signal", "run", "args"))


@dataclass(frozen=True)
class Records:
    """All records of a schedule, worker after worker; int64, so that no sum can wrap."""

    schedule: Schedule
    words: np.ndarray  # [records, RECORD_WORDS]
    start: np.ndarray  # [workers + 1], where a worker's records start
    worker: np.ndarray  # [records]

    def __len__(self) -> int:
        return len(self.words)

    @property
    def node(self) -> np.ndarray:
        """The node of each record: [records]."""
        return self.words[:, _NODE]

    @property
    def run(self) -> np.ndarray:
        """First, stride, count: [records, 3]."""
        return self.words[:, _RUN.first : _RUN.end]

    @property
    def waits(self) -> np.ndarray:
        """(counter, target) pairs: [records, MAX_WAITS, 2]."""
        return self.words[:, _WAITS.first : _WAITS.end].reshape(-1, MAX_WAITS, 2)

    @property
    def signal(self) -> np.ndarray:
        """(counter, amount): [records, 2]."""
        return self.words[:, _SIGNAL.first : _SIGNAL.end]

    def place(self, record: int) -> Place:
        """Where a record is: (worker, index in its list)."""
        worker = int(self.worker[record])
        return worker, record - int(self.start[worker])

    def describe(self, record: int) -> str:
        """The record in words."""
        return self.schedule.describe(*self.place(record))


def stack(schedule: Schedule) -> Records:
    """All lists in one array. They must have passed `list_problems`."""
    lengths = [len(records) for records in schedule.lists]
    words = np.concatenate([*schedule.lists, np.zeros((0, RECORD_WORDS), np.int32)])
    return Records(
        schedule,
        words.astype(np.int64),
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        np.repeat(np.arange(len(lengths)), lengths),
    )


def list_problems(schedule: Schedule) -> list[Problem]:
    """Lists that are not int32 [records, RECORD_WORDS]."""
    return [
        Problem(
            "record",
            f"the list of worker {worker} is {records.dtype} {list(records.shape)}, but a list is "
            f"int32 [records, {RECORD_WORDS}]: deal the schedule again.",
        )
        for worker, records in enumerate(schedule.lists)
        if records.dtype != np.int32 or records.ndim != 2 or records.shape[1] != RECORD_WORDS
    ]


def record_problems(records: Records, foot: Footprint) -> list[Problem]:
    """Records whose words do not fit the graph."""
    words, nodes = records.words, len(foot.tiles)
    node = records.node
    unknown = (node < 0) | (node >= nodes)
    if unknown.any():
        return _each(records, unknown, f"names a node that is not one of the graph's {nodes}")
    counters = records.schedule.counters
    first, stride, count = records.run.T
    waits, signal = records.waits, records.signal
    used = np.logical_and.accumulate(waits[:, :, 0] >= 0, axis=1)
    checks = [
        (words[:, _OP] != foot.opcodes[node], "has an opcode that is not its node's op"),
        (
            (words[:, _ARGS.first : _ARGS.end] != foot.args[node]).any(axis=1),
            "has argument words that are not its node's arguments: it would touch other tensors "
            "than the ones that were checked",
        ),
        (
            (first < 0) | (stride < 1) | (count < 0) | _leaves(first, stride, count, foot, node),
            "has a run that leaves its node's tiles, or a stride below 1, or a count below 0",
        ),
        (
            ((waits[:, :, 0] < NO_COUNTER) | (waits[:, :, 0] >= counters)).any(axis=1),
            f"waits on a counter that is not one of the schedule's {counters}",
        ),
        (
            ((waits[:, :, 0] >= 0) & ~used).any(axis=1),
            "has a wait after the end of its list of waits, which no worker would look at",
        ),
        (
            (used & (waits[:, :, 1] < 1)).any(axis=1),
            "has a wait with a target below 1, which waits for nothing",
        ),
        (
            (signal[:, 0] < NO_COUNTER) | (signal[:, 0] >= counters),
            f"signals a counter that is not one of the schedule's {counters}",
        ),
        (
            (signal[:, 0] >= 0) & (signal[:, 1] < 1),
            "signals an amount below 1, which nobody would notice",
        ),
    ]
    return [p for bad, what in checks if bad.any() for p in _each(records, bad, what)]


def _leaves(
    first: np.ndarray, stride: np.ndarray, count: np.ndarray, foot: Footprint, node: np.ndarray
) -> np.ndarray:
    return (count > 0) & (first + stride * (count - 1) >= foot.tiles[node])


def _each(records: Records, bad: np.ndarray, what: str) -> list[Problem]:
    return [
        Problem(
            "record",
            f"{records.describe(int(r))} {what}; deal the schedule again instead of editing it.",
            records=(records.place(int(r)),),
        )
        for r in np.flatnonzero(bad)[:MAX_PROBLEMS]
    ]
