"""The schedule: for each worker the ordered list of records it runs, and the counters they use."""

from dataclasses import dataclass

import numpy as np

from mkport.declare import RECORD
from mkport.plan.graph import Graph

_WAITS, _SIGNAL, _RUN = RECORD["waits"], RECORD["signal"], RECORD["run"]


@dataclass(frozen=True)
class Schedule:
    """Records of one step. `lists[w]` is int32 [records of worker w, RECORD_WORDS]."""

    graph: Graph
    lists: tuple[np.ndarray, ...]
    counters: int

    @property
    def workers(self) -> int:
        """How many workers the records are dealt to."""
        return len(self.lists)

    def describe(self, worker: int, index: int) -> str:
        """A record in words: "layer 3 / o_proj tiles 4, 6, ..., 10 (worker 2, record 17)"."""
        record = self.lists[worker][index]
        first, stride, count = (int(v) for v in record[_RUN.first : _RUN.end])
        node = int(record[RECORD["node"].first])
        known = 0 <= node < len(self.graph.nodes)
        label = self.graph.nodes[node].label if known else f"unknown node {node}"
        last = first + stride * (count - 1)
        if count < 1:
            tiles = "without tiles"
        elif count == 1:
            tiles = f"tile {first}"
        elif stride == 1:
            tiles = f"tiles {first}..{last}"
        else:
            tiles = f"tiles {first}, {first + stride}, ..., {last}"
        return f"{label} {tiles} (worker {worker}, record {index})"


def waits_of(record: np.ndarray) -> list[tuple[int, int]]:
    """The (counter, target) pairs of a record int32 [RECORD_WORDS], up to the first unused slot."""
    pairs = record[_WAITS.first : _WAITS.end].reshape(-1, 2)
    used = []
    for counter, target in pairs:
        if counter < 0:
            break
        used.append((int(counter), int(target)))
    return used


def signal_of(record: np.ndarray) -> tuple[int, int]:
    """The (counter, amount) that a record, int32 [RECORD_WORDS], signals; counter -1: none."""
    return int(record[_SIGNAL.first]), int(record[_SIGNAL.first + 1])


def run_of(record: np.ndarray) -> np.ndarray:
    """The tiles of the run of a record, int32 [RECORD_WORDS]: int64 [count]."""
    first, stride, count = (int(v) for v in record[_RUN.first : _RUN.end])
    return first + stride * np.arange(count, dtype=np.int64)
