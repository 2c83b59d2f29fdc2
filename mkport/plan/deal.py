"""Deals a planned graph's tiles to workers: each worker's list is a subsequence of program order.

Because every list follows one global order and all workers are resident, the earliest unfinished
task can always run: no deal can deadlock. The verifier checks that premise on the result.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heapreplace
from typing import Literal

import numpy as np

from mkport.declare import RECORD, RECORD_WORDS
from mkport.declare.op import Run
from mkport.declare.record import NO_COUNTER
from mkport.errors import UserError
from mkport.plan.depend import Planned, plan
from mkport.plan.graph import Graph, Node
from mkport.plan.schedule import Schedule

MAX_WORKERS = 1024  # more than the multiprocessors of any GPU or the cores of any socket
ONE_IN = 2  # pairs of workers has some of what runs beside others' reads of memory

Share = Literal["blocks", "strided"]


def check_workers(workers: int) -> None:
    """Raises UserError for a worker count outside 1 to MAX_WORKERS."""
    if not 1 <= workers <= MAX_WORKERS:
        raise UserError(
            f"{workers} workers asked for, but a schedule has 1 to {MAX_WORKERS}: "
            "give --workers the number of cores (CPU) or multiprocessors (GPU)."
        )


def deal(graph: Graph, workers: int, share: Share = "blocks") -> Schedule:
    """Plans the graph and deals its tiles.

    `share` "blocks" gives each worker neighbouring tiles (a CPU's prefetcher follows them),
    "strided" every n-th tile (a GPU's workers stream neighbouring rows at the same time).
    A node's lots (see `Op.lots`) that are fewer than the workers have workers of their own, else
    whole lots are dealt in turn. Of "strided" tiles that may run beside those of the node before
    them, workers that had more bytes there (see `Op.streams`) get fewer; where a node's op has a
    second node, the bytes of both count together, and those of what ran beside the first. And where
    these are lots of which all workers get some, few lots before them go to a part of the workers
    alone: what they read again and again comes from a cache, while memory is left to the others.
    Each node has one counter; a record adds its number of tiles, and a wait's target is the
    node's number of tiles. Raises UserError for a worker count outside 1 to MAX_WORKERS.
    """
    check_workers(workers)
    planned = plan(graph)
    ids = planned.graph.tensor_ids()
    opcodes = {op: code for code, op in enumerate(planned.graph.ops)}
    counter = _counters(planned)
    lists: list[list[np.ndarray]] = [[] for _ in range(workers)]
    cursor = 0
    uneven: tuple[int, np.ndarray] | None = None  # a node, and the bytes that each worker had by it
    for number, node in enumerate(planned.graph.nodes):
        template = np.zeros(RECORD_WORDS, np.int32)
        template[RECORD["op"].first] = opcodes[node.op]
        template[RECORD["node"].first] = number
        _set(template, "waits", _waits(planned, number, counter))
        _set(template, "args", node.op.encode(node.args, ids))
        streamed = node.op.streams(node.bound) if share == "strided" and node.tiles else 0
        before: np.ndarray | None = None
        if streamed and uneven is not None and not _waits_for(planned, number, uneven[0]):
            before = uneven[1]
        shares = list(_shares(planned, number, workers, share, cursor, before))
        if streamed:
            most = 1 if node.op.seldom(node.bound) else node.tiles
            here = _dealt(shares, workers, most) * streamed
            together = before is not None and _in_parts(planned.graph, number)
            uneven = number, here + before if together else here
        for worker, runs in shares:
            records = np.repeat(template[None], len(runs), axis=0)
            _set(records, "run", runs)
            records[:, RECORD["signal"].first] = counter.get(number, NO_COUNTER)
            records[:, RECORD["signal"].first + 1] = np.maximum(runs[:, 2], 1)
            lists[worker].append(records)
        cursor += max(node.tiles, 1)
    stacked = tuple(
        np.concatenate(records) if records else np.zeros((0, RECORD_WORDS), np.int32)
        for records in lists
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


def _lots(node: Node) -> list[Run]:
    return [(0, 1, node.tiles)] if node.op.lots is None else list(node.op.lots(node.bound))


def _waits_for(planned: Planned, number: int, other: int) -> bool:
    """Whether a node waits for an earlier one, itself or through those that it waits for or whose
    words it awaits."""
    todo, seen = [number], set[int]()
    while todo:
        last = todo.pop()
        for need in (*planned.waits[last], *planned.awaits[last]):
            if need == other:
                return True
            if need > other and need not in seen:
                seen.add(need)
                todo.append(need)
    return False


def _dealt(shares: Iterable[tuple[int, np.ndarray]], workers: int, most: int) -> np.ndarray:
    """The tiles that each worker has of a node, int64 [workers], counted up to `most`."""
    dealt = np.zeros(workers, np.int64)
    for worker, runs in shares:
        dealt[worker] += runs[:, 2].sum()
    return np.minimum(dealt, most)


def _shares(
    planned: Planned,
    number: int,
    workers: int,
    share: Share,
    cursor: int,
    before: np.ndarray | None,
) -> Iterator[tuple[int, np.ndarray]]:
    """Workers that get a share of a node and their runs, as `_runs`; `before` are the bytes
    [workers] that each has of what may run beside it."""
    node = planned.graph.nodes[number]
    lots = len(_lots(node))
    if share == "blocks" or not node.tiles or not node.op.streams(node.bound):
        return _runs(node, workers, share, cursor)
    if 1 < lots < workers:
        one_in = ONE_IN if _beside(planned, number, workers) else 1
        return _runs(node, workers, share, cursor, one_in)
    if before is None:
        return _runs(node, workers, share, cursor)
    return _evened(node, before, cursor)


def _in_parts(graph: Graph, number: int) -> bool:
    """Whether a node, of those that stream, stands beside one of its op, as parts of one do."""
    op = graph.nodes[number].op
    ways = (graph.nodes[number + 1 :], graph.nodes[:number][::-1])
    nearest = [next((n.op for n in way if n.op.streams(n.bound)), None) for way in ways]
    return op in nearest


def _beside(planned: Planned, number: int, workers: int) -> bool:
    """Whether a node may run beside the next one, of whose lots all workers get some."""
    after = planned.graph.nodes[number + 1 : number + 2]
    whole = [node.op.streams(node.bound) and len(_lots(node)) >= workers for node in after]
    return any(whole) and not _waits_for(planned, number + 1, number)


def _evened(node: Node, before: np.ndarray, cursor: int) -> Iterator[tuple[int, np.ndarray]]:
    """As `_runs`, strided: all are to end with as many bytes, of which they had some `before`
    [workers]. Of a single lot those that had as many share alike."""
    streamed, lots = node.op.streams(node.bound), _lots(node)
    if lots[1:]:
        yield from _evened_lots(lots, streamed, before, cursor)
        return
    goal = (before.sum() + node.tiles * streamed) / len(before)
    levels, members = np.unique(before, return_counts=True)
    wanted = np.maximum(goal - levels, 0) * members
    ends = np.rint(np.cumsum(wanted) / wanted.sum() * node.tiles).astype(int)
    for level, begin, end in zip(levels, [0, *ends[:-1]], ends, strict=True):
        workers = np.flatnonzero(before == level)
        for place, run in enumerate(_split((begin, 1, end - begin), len(workers), "strided")):
            if run[2]:
                yield int(workers[(cursor + place) % len(workers)]), np.array([run])


def _evened_lots(
    lots: list[Run], streamed: int, before: np.ndarray, cursor: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Each lot to the worker that has the fewest bytes by then."""
    workers = len(before)
    turns = ((cursor + place) % workers for place in range(workers))
    heap = [(int(before[worker]), place, worker) for place, worker in enumerate(turns)]
    heapify(heap)
    dealt: list[list[Run]] = [[] for _ in range(workers)]
    for lot in lots:
        least, place, worker = heap[0]
        dealt[worker].append(lot)
        heapreplace(heap, (least + lot[2] * streamed, place, worker))
    for worker, runs in enumerate(dealt):
        if runs:
            yield worker, np.array(runs, np.int64)


def _runs(
    node: Node, workers: int, share: Share, cursor: int, one_in: int = 1
) -> Iterator[tuple[int, np.ndarray]]:
    """Workers that get a share and their runs, int64 [runs, 3]; one empty run for no tiles. Few
    lots go to one pair of workers `one_in`."""
    lots = _lots(node)
    if len(lots) < workers:
        edges = [workers * p // len(lots) for p in range(len(lots) + 1)]
        for lot, begin, end in zip(lots, edges, edges[1:], strict=False):
            mine = [worker for worker in range(begin, end) if (worker - begin) // 2 % one_in == 0]
            few = len(mine)
            if len(lots) > 1 and lot[2]:  # as few as have no more tiles than if all had some
                few = -(-lot[2] // -(-lot[2] // few))
            for place, run in enumerate(_split(lot, few, share)):
                yield mine[(cursor + place) % len(mine)], np.array([run])
    else:
        runs = np.array(lots, np.int64)
        for place in range(workers):
            yield (cursor + place) % workers, runs[place::workers]


def _split(lot: Run, workers: int, share: Share) -> list[Run]:
    """(first, stride, count) for each worker that gets a share of a lot."""
    first, stride, tiles = lot
    if tiles == 0:
        return [lot]
    parts = min(tiles, workers)
    if share == "strided":
        return [
            (first + p * stride, parts * stride, (tiles - p + parts - 1) // parts)
            for p in range(parts)
        ]
    edges = [tiles * p // parts for p in range(parts + 1)]
    return [(first + edges[p] * stride, stride, edges[p + 1] - edges[p]) for p in range(parts)]


def _set(records: np.ndarray, name: str, words: list[int] | np.ndarray) -> None:
    """Sets a field of one record, or of all of [n, RECORD_WORDS]."""
    first = RECORD[name].first
    records[..., first : first + np.shape(words)[-1]] = words
