"""A step's times on a machine that is made up: what a schedule would take if tasks cost so much.

Every worker walks its list as on a real machine, and nothing is computed. It answers "what if":
another deal, a ring that reads ahead, fewer workers. What a real machine takes has to be measured.
"""

from dataclasses import dataclass

import numpy as np

from mkport.declare import RECORD
from mkport.plan.bytes import node_bytes
from mkport.plan.schedule import Schedule, run_of, signal_of, waits_of
from mkport.trace.trace import Trace


@dataclass(frozen=True)
class Costs:
    """A made-up machine. `ahead` is how many bytes that nothing writes a worker may have read
    before the task that needs them can begin; 0: a task reads after its waits."""

    bytes_per_s: float  # that one worker reads
    task_ns: int = 500  # of every record, whatever it reads
    signal_ns: int = 1000  # from a signal to whoever waits for it
    ahead: int = 0  # bytes


def simulate(
    schedule: Schedule, costs: Costs, caption: str = "", *, rows: int = 1, context: int = 1
) -> Trace:
    """The trace of one step of `rows` tokens at a `context` of so many positions, as `node_bytes`
    counts them.

    The same arguments give the same times. Raises ValueError for lists that do not follow the order
    of the nodes, which no verified schedule does.
    """
    graph = schedule.graph
    needed = node_bytes(graph, rows, context)
    chosen = [any(a.picks is not None for a in node.accesses) for node in graph.nodes]
    node_of = RECORD["node"].first
    queue = sorted(
        (int(record[node_of]), worker, index)
        for worker, records in enumerate(schedule.lists)
        for index, record in enumerate(records)
    )
    free = [0] * schedule.workers  # when a worker is done with its last record
    loaded = [0] * schedule.workers  # when its loader is
    after = [-1] * schedule.workers  # its last record
    over: dict[int, int] = {}  # when a counter had its last signal
    rows_of: list[tuple[int, int, int, int, int, int]] = []
    for node, worker, index in queue:
        if index != after[worker] + 1:
            raise ValueError(f"worker {worker}: record {index} does not follow the nodes' order")
        after[worker] = index
        record = schedule.lists[worker][index]
        start = free[worker]
        waits = [over[counter] + costs.signal_ns for counter, _ in waits_of(record)]
        ready = max([start, *waits])
        size = needed[node] * len(run_of(record)) / max(graph.nodes[node].tiles, 1)
        lead = 0 if chosen[node] else costs.ahead  # which bytes those are is data
        begin = max(loaded[worker], ready - round(lead / costs.bytes_per_s * 1e9), 0)
        loaded[worker] = begin + round(size / costs.bytes_per_s * 1e9)
        end = max(ready, loaded[worker]) + costs.task_ns
        free[worker] = end
        counter, _ = signal_of(record)
        if counter >= 0:
            over[counter] = max(over.get(counter, 0), end)
        rows_of.append((worker, index, node, start, ready, end))
    table = np.array(rows_of, np.int64).reshape(-1, 6)
    places = table[:, :3].astype(np.int32)
    return Trace(
        workers=schedule.workers,
        worker=places[:, 0],
        record=places[:, 1],
        node=places[:, 2],
        times=table[:, 3:],
        nodes=tuple((node.label, node.op.name) for node in graph.nodes),
        caption=f"simulated{': ' if caption else ''}{caption}",
    )
