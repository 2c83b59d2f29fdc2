"""Deals a planned graph's tiles to workers: each worker's list is a subsequence of program order.

Because every list follows one global order and all workers are resident, the earliest unfinished
task can always run: no deal can deadlock. The verifier checks that premise on the result.
"""

from typing import Literal

import numpy as np

from mkport.declare import RECORD, RECORD_WORDS
from mkport.declare.record import NO_COUNTER
from mkport.errors import UserError
from mkport.plan.depend import Planned, plan
from mkport.plan.graph import Graph
from mkport.plan.schedule import Schedule

MAX_WORKERS = 1024  # more than the multiprocessors of any GPU or the cores of any socket

Share = Literal["blocks", "strided"]


def deal(graph: Graph, workers: int, share: Share = "blocks") -> Schedule:
    """Plans the graph and deals its tiles.

    `share` "blocks" gives each worker neighbouring tiles (a CPU's prefetcher follows them),
    "strided" every n-th tile (a GPU's workers stream neighbouring rows at the same time).
    Each node has one counter; a record adds its number of tiles, and a wait's target is the
    node's number of tiles. Raises UserError for a worker count outside 1 to MAX_WORKERS.
    """
    if not 1 <= workers <= MAX_WORKERS:
        raise UserError(
            f"{workers} workers asked for, but a schedule has 1 to {MAX_WORKERS}: "
            "give --workers the number of cores (CPU) or multiprocessors (GPU)."
        )
    planned = plan(graph)
    ids = planned.graph.tensor_ids()
    opcodes = {op: code for code, op in enumerate(planned.graph.ops)}
    counter = _counters(planned)
    lists: list[list[np.ndarray]] = [[] for _ in range(workers)]
    cursor = 0
    for number, node in enumerate(planned.graph.nodes):
        template = np.zeros(RECORD_WORDS, np.int32)
        template[RECORD["op"].first] = opcodes[node.op]
        template[RECORD["node"].first] = number
        _set(template, "waits", _waits(planned, number, counter))
        _set(template, "args", node.op.encode(node.args, ids))
        for place, run in enumerate(_runs(node.tiles, workers, share)):
            record = template.copy()
            _set(record, "run", run)
            _set(record, "signal", [counter.get(number, NO_COUNTER), max(run[2], 1)])
            lists[(cursor + place) % workers].append(record)
        cursor = (cursor + max(node.tiles, 1)) % workers
    stacked = tuple(
        np.stack(records) if records else np.zeros((0, RECORD_WORDS), np.int32) for records in lists
    )
    return Schedule(planned.graph, stacked, len(counter))


def _counters(planned: Planned) -> dict[int, int]:
    """A counter for each node that somebody waits for, in program order."""
    waited = sorted({n for needs in planned.waits for n in needs})
    return {node: place for place, node in enumerate(waited)}


def _waits(planned: Planned, number: int, counter: dict[int, int]) -> list[int]:
    words: list[int] = []
    for need in planned.waits[number]:
        words += [counter[need], max(planned.graph.nodes[need].tiles, 1)]
    while len(words) < RECORD["waits"].words:
        words += [NO_COUNTER, 0]
    return words


def _runs(tiles: int, workers: int, share: Share) -> list[tuple[int, int, int]]:
    """(first, stride, count) for each worker that gets a share; one empty run for no tiles."""
    if tiles == 0:
        return [(0, 1, 0)]
    parts = min(tiles, workers)
    if share == "strided":
        return [(p, parts, (tiles - p + parts - 1) // parts) for p in range(parts)]
    edges = [tiles * p // parts for p in range(parts + 1)]
    return [(edges[p], 1, edges[p + 1] - edges[p]) for p in range(parts)]


def _set(record: np.ndarray, name: str, words: list[int] | tuple[int, ...]) -> None:
    field = RECORD[name]
    record[field.first : field.first + len(words)] = words
