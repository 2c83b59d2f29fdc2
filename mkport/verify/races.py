"""Checks that every two touches of one atom, one of them a write, happen in program order. Flagged
tensors are left out: their readers await each word.

Nodes are taken in program order. Each atom remembers the record that wrote it last (the last one of
each worker, where a node's tiles write apart in one box) and, per worker, the last record that read
it since; a touch is compared with these alone. That is enough: whatever came before them was
compared with them, and happens-before is transitive. An order that is there but runs against
program order is refused as well, since the later node would see the wrong bytes.
"""

import numpy as np
from numba import njit

from mkport.verify.flagged import flagged
from mkport.verify.footprint import APART, BOX, IMMUTABLE, MODE, NODE, READ, VARIES, Footprint
from mkport.verify.records import Records
from mkport.verify.report import MAX_PROBLEMS, Box, Problem, tile_text
from mkport.verify.tiles import atoms_of, biggest


def race_problems(
    records: Records, foot: Footprint, owner: np.ndarray, start: np.ndarray, clock: np.ndarray
) -> tuple[int, list[Problem]]:
    """How many comparisons were made, and the pairs that are not in program order.

    `owner` int64 [tiles of all nodes] and `start` int64 [nodes + 1] are `owners`'; `clock` int32
    [records, workers] is `clocks`'. Source: Flanagan and Freund, "FastTrack: Efficient and Precise
    Dynamic Race Detection", PLDI 2009: an atom's last write is one record, its reads are one per
    worker. Here the order must be program order, too.
    """
    by_node = np.argsort(records.node, kind="stable")
    by_node = by_node[records.run[by_node, 2] > 0]  # a record without tiles touches nothing
    nodes = np.searchsorted(records.node[by_node], np.arange(len(foot.tiles) + 1))
    found = np.empty((MAX_PROBLEMS, 5), np.int64)
    checks, count = _find(
        flagged(foot),
        foot.rows,
        foot.boxes,
        foot.first,
        foot.grid,
        foot.tiles,
        owner,
        start,
        by_node,
        nodes,
        records.start,
        records.worker,
        clock,
        found,
    )
    return checks, [
        _words(records, foot, clock, owner, start, *(int(v) for v in row)) for row in found[:count]
    ]


@njit(cache=True)
def _find(  # type: ignore[no-untyped-def]
    awaited,
    rows,
    boxes,
    first,
    grid,
    tiles,
    owner,
    start,
    by_node,
    nodes,
    list_start,
    worker,
    clock,
    found,
):
    """Fills `found` with (tensor, earlier record, row, tile, later record)."""
    workers = len(list_start) - 1
    most = biggest(grid)
    atoms = np.empty(most, np.int64)
    writer = np.empty(most, np.int64)  # the record that wrote an atom last
    readers = np.empty((most, workers), np.int32)  # per worker, 1 + index of the last reader since
    read = np.empty(most, np.bool_)  # whether there is any
    some = (rows[:, APART] == 1).any()
    writers = np.empty((most if some else 1, workers), np.int32)  # as readers, of boxes that many
    spread = np.empty(most, np.bool_)  # records write apart
    checks = 0
    n = 0
    for t in range(len(grid)):
        if awaited[t]:
            continue
        writer[:] = -1
        read[:] = False
        spread[:] = False
        begin = first[t]
        while begin < first[t + 1]:
            node = rows[begin, NODE]
            end = begin
            while end < first[t + 1] and rows[end, NODE] == node:
                end += 1
            # All of a node's touches meet earlier nodes' first; then its writes, then its reads
            # are remembered.
            for phase in range(3):
                for r in range(begin, end):
                    mode = rows[r, MODE]
                    if mode == IMMUTABLE:
                        continue
                    if (phase == 1 and mode == READ) or (phase == 2 and mode != READ):
                        continue
                    varies = rows[r, VARIES] == 1
                    count = 0
                    for turn in range(tiles[node] if varies else nodes[node + 1] - nodes[node]):
                        if varies or turn == 0:
                            box = rows[r, BOX] + turn
                            count = atoms_of(boxes, box, grid, t, atoms)
                        record = (
                            owner[start[node] + turn] if varies else by_node[nodes[node] + turn]
                        )
                        w = worker[record]
                        for p in range(count):
                            atom = atoms[p]
                            if phase == 1:
                                writer[atom] = record
                                read[atom] = False
                                if rows[r, APART] == 1:
                                    if turn == 0:
                                        writers[atom] = 0
                                    index = record - list_start[w] + 1
                                    writers[atom, w] = max(writers[atom, w], index)
                                spread[atom] = rows[r, APART] == 1
                                continue
                            if phase == 2:
                                if not read[atom]:
                                    read[atom] = True
                                    readers[atom] = 0
                                index = record - list_start[w] + 1
                                readers[atom, w] = max(readers[atom, w], index)
                                continue
                            earlier = writer[atom]
                            late = -1
                            if earlier >= 0:
                                checks += 1
                                v = worker[earlier]
                                if clock[record, v] <= earlier - list_start[v]:
                                    late = earlier
                            if late < 0 and spread[atom]:
                                checks += workers
                                for v in range(workers):
                                    if clock[record, v] < writers[atom, v]:
                                        late = list_start[v] + writers[atom, v] - 1
                                        break
                            if late < 0 and mode != READ and read[atom]:
                                checks += workers
                                for v in range(workers):
                                    if clock[record, v] < readers[atom, v]:
                                        late = list_start[v] + readers[atom, v] - 1
                                        break
                            if late >= 0 and n < len(found):
                                if n == 0 or found[n - 1, 1] != late or found[n - 1, 4] != record:
                                    found[n] = (t, late, r, turn if varies else -1, record)
                                    n += 1
            begin = end
    return checks, n


def _words(
    records: Records,
    foot: Footprint,
    clock: np.ndarray,
    owner: np.ndarray,
    start: np.ndarray,
    tensor: int,
    earlier: int,
    row: int,
    tile: int,
    later: int,
) -> Problem:
    box, did = _meeting(records, foot, owner, start, tensor, earlier, row, tile)
    text = tile_text(foot.tensors[tensor], box)
    before, after = records.describe(earlier), records.describe(later)
    doing = "reads" if foot.rows[row, MODE] == READ else "writes"
    place, index = records.place(earlier)
    reverse = clock[earlier, records.worker[later]] > records.place(later)[1]
    fact = "the schedule runs them the other way round" if reverse else "nothing orders them"
    counter = int(records.signal[earlier, 0])
    wait = f"a wait on counter {counter}" if counter >= 0 else "a signal to it and a wait for it"
    fix = (
        f"move the second behind the first, with {wait} if they are on different workers"
        if reverse
        else f"add {wait} to {after} or to a record before it in its list"
    )
    return Problem(
        "order",
        f"{before} {did} {text}, which {after} {doing}, but {fact}. {before} must happen before "
        f"{after}: {fix}.",
        records=((place, index), records.place(later)),
        tensor=foot.tensors[tensor],
        box=box,
        edge=((place, index), records.place(later)),
    )


def _meeting(
    records: Records,
    foot: Footprint,
    owner: np.ndarray,
    start: np.ndarray,
    tensor: int,
    earlier: int,
    row: int,
    tile: int,
) -> tuple[Box, str]:
    """Where the earlier record's tiles meet the later one's box, and what they did there."""
    node = int(records.node[earlier])
    mine = foot.box(tensor, row, max(tile, 0))
    for r in range(foot.first[tensor], foot.first[tensor + 1]):
        mode = foot.rows[r, MODE]
        if foot.rows[r, NODE] != node or mode == IMMUTABLE:
            continue
        if mode == READ and foot.rows[row, MODE] == READ:
            continue
        for other in np.flatnonzero(owner[start[node] : start[node + 1]] == earlier):
            theirs = foot.box(tensor, r, int(other))
            meet = tuple(
                (max(a, c), min(b, d)) for (a, b), (c, d) in zip(mine, theirs, strict=True)
            )
            if all(lo < hi for lo, hi in meet):
                return meet, "reads" if mode == READ else "writes"
    raise AssertionError("the records do not meet, yet an atom says so")
