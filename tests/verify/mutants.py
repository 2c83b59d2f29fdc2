"""Faults to plant in a schedule. Each function changes a copy, or returns None where it can't."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mkport.declare import RECORD, RECORD_WORDS
from mkport.plan import Graph, Schedule
from tests.verify.toys import BUMP, COLUMNS, MIX, SOURCES

WAITS, SIGNAL, RUN, ARGS = (RECORD[name].first for name in ("waits", "signal", "run", "args"))
OP, NODE = RECORD["op"].first, RECORD["node"].first
Lists = list[list[np.ndarray]]
Mutation = Callable[[random.Random, Lists, Schedule], Schedule | None]


def copy_lists(schedule: Schedule) -> Lists:
    return [[record.copy() for record in records] for records in schedule.lists]


def rebuild(schedule: Schedule, lists: Lists, graph: Graph | None = None) -> Schedule:
    stacked = tuple(np.stack(r) if r else np.zeros((0, RECORD_WORDS), np.int32) for r in lists)
    return Schedule(graph or schedule.graph, stacked, schedule.counters)


def _all(lists: Lists) -> list[np.ndarray]:
    return [record for records in lists for record in records]


def _waits(lists: Lists) -> list[tuple[np.ndarray, int]]:
    """(record, word) of every used wait."""
    return [(r, w) for r in _all(lists) for w in range(WAITS, SIGNAL, 2) if r[w] >= 0]


def _signalling(lists: Lists) -> list[np.ndarray]:
    return [r for r in _all(lists) if r[SIGNAL] >= 0]


def _total(lists: Lists, counter: int) -> int:
    return sum(int(r[SIGNAL + 1]) for r in _all(lists) if r[SIGNAL] == counter)


def _retarget(lists: Lists) -> None:
    """Makes every wait want exactly what is signalled, so that only the order can be wrong."""
    for record, w in _waits(lists):
        record[w + 1] = _total(lists, int(record[w]))


def _remove_wait(record: np.ndarray, w: int) -> None:
    record[w : SIGNAL - 2] = record[w + 2 : SIGNAL].copy()
    record[SIGNAL - 2 : SIGNAL] = (-1, 0)


def dropped_signal(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    if not (some := _signalling(lists)):
        return None
    dice.choice(some)[SIGNAL] = -1
    return rebuild(s, lists)


def dropped_signal_retargeted(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """One record no longer signals, and nobody waits for it: only the race is left to see."""
    if not (some := _signalling(lists)):
        return None
    dice.choice(some)[SIGNAL] = -1
    _retarget(lists)
    return rebuild(s, lists)


def wrong_target(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    if not (some := _waits(lists)):
        return None
    record, w = dice.choice(some)
    record[w + 1] += dice.choice([-1, 1, 2, -int(record[w + 1]), 2**30])
    return rebuild(s, lists)


def wrong_amount(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    if not (some := _signalling(lists)):
        return None
    dice.choice(some)[SIGNAL + 1] = dice.choice([0, -1, 5, 2**31 - 1])
    return rebuild(s, lists)


def overflowing_sum(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    for record in _signalling(lists):
        record[SIGNAL + 1] = 2**31 - 1
    for record, w in _waits(lists):
        record[w + 1] = 2**31 - 1
    return rebuild(s, lists)


def swapped_order(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    if not (some := [records for records in lists if len(records) > 1]):
        return None
    records = dice.choice(some)
    i, j = dice.sample(range(len(records)), 2)
    if dice.random() < 0.5:
        j = i + 1 if i + 1 < len(records) else i - 1
    records[i], records[j] = records[j], records[i]
    return rebuild(s, lists)


def duplicated_task(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    record = dice.choice(_all(lists)).copy()
    if dice.random() < 0.5:
        record[SIGNAL] = -1  # so that the counters still add up
    records = dice.choice(lists)
    records.insert(dice.randint(0, len(records)), record)
    return rebuild(s, lists)


def dropped_record(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    records = dice.choice([r for r in lists if r])
    records.pop(dice.randrange(len(records)))
    if dice.random() < 0.5:
        _retarget(lists)
    return rebuild(s, lists)


def missing_wait(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    if not (some := _waits(lists)):
        return None
    _remove_wait(*dice.choice(some))
    return rebuild(s, lists)


def missing_edge(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """A whole node forgets one of its waits."""
    if not (some := _waits(lists)):
        return None
    chosen, word = dice.choice(some)
    counter, node = int(chosen[word]), chosen[NODE]
    for record in [r for r in _all(lists) if r[NODE] == node]:
        for w in range(WAITS, SIGNAL, 2):
            if record[w] == counter:
                _remove_wait(record, w)
                break
    return rebuild(s, lists)


def hidden_wait(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    if not (some := [(r, w) for r, w in _waits(lists) if w + 2 < SIGNAL]):
        return None
    record, w = dice.choice(some)
    record[w + 2 : w + 4] = record[w : w + 2].copy()
    record[w] = -1
    return rebuild(s, lists)


def redirected_wait(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    if not (some := _waits(lists)) or s.counters < 2:
        return None
    record, w = dice.choice(some)
    record[w] = dice.randrange(s.counters)
    record[w + 1] = _total(lists, int(record[w]))
    return rebuild(s, lists)


def redirected_signal(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    if not (some := _signalling(lists)) or s.counters < 2:
        return None
    dice.choice(some)[SIGNAL] = dice.randrange(s.counters)
    if dice.random() < 0.7:
        _retarget(lists)
    return rebuild(s, lists)


def extra_wait(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """Harmless where it follows the order, a circle where it does not."""
    some = [r for r in _all(lists) if r[SIGNAL - 2] == -1]
    if not some or not s.counters:
        return None
    record = dice.choice(some)
    w = next(w for w in range(WAITS, SIGNAL, 2) if record[w] == -1)
    record[w] = dice.randrange(s.counters)
    record[w + 1] = _total(lists, int(record[w]))
    return rebuild(s, lists)


def changed_run(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    record = dice.choice(_all(lists))
    record[RUN + dice.randrange(3)] += dice.choice([-2, -1, 1, 2])
    return rebuild(s, lists)


def swapped_runs(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """Two records of one node change runs: safe, since all of a node waits for the same."""
    records = _all(lists)
    one = dice.choice(records)
    two = dice.choice([r for r in records if r[NODE] == one[NODE]])
    one[RUN : RUN + 3], two[RUN : RUN + 3] = two[RUN : RUN + 3].copy(), one[RUN : RUN + 3].copy()
    return rebuild(s, lists)


def split_record(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """A run cut in two, the second half somewhere in some list."""
    places = [(w, i) for w, r in enumerate(lists) for i, x in enumerate(r) if x[RUN + 2] > 1]
    if not places:
        return None
    w, i = dice.choice(places)
    record, rest = lists[w][i], lists[w][i].copy()
    keep = dice.randint(1, int(record[RUN + 2]) - 1)
    record[RUN + 2] = keep
    rest[RUN] += keep * rest[RUN + 1]
    rest[RUN + 2] -= keep
    if record[SIGNAL] >= 0:
        record[SIGNAL + 1] = keep
        rest[SIGNAL + 1] -= keep
    target, at = (w, i + 1) if dice.random() < 0.5 else (dice.randrange(len(lists)), -1)
    lists[target].insert(at if at >= 0 else dice.randint(0, len(lists[target])), rest)
    return rebuild(s, lists)


def changed_tensor(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """A record's tensor becomes another one: its buffer overlaps that of a stranger."""
    record = dice.choice([r for r in _all(lists) if s.graph.nodes[r[NODE]].tiles])
    record[ARGS + dice.randrange(8)] = dice.randrange(-1, len(s.graph.tensors))
    return rebuild(s, lists)


def changed_field(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    record = dice.choice(_all(lists))
    word = dice.choice([OP, NODE, WAITS, SIGNAL, ARGS + 15])
    record[word] = dice.choice([-2, -1, 0, 1, len(s.graph.nodes), 2**31 - 1, -(2**31)])
    return rebuild(s, lists)


def moved_record(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    records = dice.choice([r for r in lists if r])
    record = records.pop(dice.randrange(len(records)))
    target = dice.choice(lists)
    target.insert(dice.randint(0, len(target)), record)
    return rebuild(s, lists)


def merged_lists(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """One worker's list becomes the tail of another's: safe in program order, else a circle."""
    if len(lists) < 2:
        return None
    i, j = dice.sample(range(len(lists)), 2)
    merged = lists[i] + lists[j]
    if dice.random() < 0.5:
        merged.sort(key=lambda record: int(record[NODE]))
    lists[i] = merged
    lists.pop(j)
    return rebuild(s, lists)


def shuffled_workers(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """Always safe: no rule knows a worker's number."""
    dice.shuffle(lists)
    return rebuild(s, lists)


def _with_graph(
    s: Schedule, lists: Lists, kinds: dict[str, str], changes: dict[int, dict]
) -> Schedule:
    """The same deal for another graph, records re-encoded: what a wrong declaration leads to."""
    graph = Graph()
    graph.tensors = {
        name: replace(spec, kind=kinds.get(name, spec.kind))  # type: ignore[arg-type]
        for name, spec in s.graph.tensors.items()
    }
    for number, node in enumerate(s.graph.nodes):
        graph.add(node.op, node.label, **(node.args | changes.get(number, {})))
    ids = graph.tensor_ids()
    opcodes = {op: code for code, op in enumerate(graph.ops)}
    for record in _all(lists):
        node = graph.nodes[record[NODE]]
        words = node.op.encode(node.args, ids)
        record[ARGS : ARGS + len(words)] = words
        record[OP] = opcodes[node.op]
    return rebuild(s, lists, graph)


def _toy_nodes(s: Schedule) -> list[int]:
    return [n for n, node in enumerate(s.graph.nodes) if node.op in (MIX, BUMP)]


def moved_box(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """A node writes or reads other columns than the waits were derived from."""
    number = dice.choice(_toy_nodes(s))
    lo = dice.randint(0, COLUMNS - 1)
    change = dice.choice(
        [
            {"first": dice.randint(-1, COLUMNS)},
            {"width": dice.randint(1, 4)},
            {"whole": 1, "lo": lo, "hi": dice.randint(lo, COLUMNS + 1)},
            {"whole": 0},
        ]
    )
    return _with_graph(s, lists, {}, {number: change})


def overlapping_buffers(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """Two tensors become one for every node after some point."""
    one, two = dice.sample(list(s.graph.tensors), 2)
    after = dice.randrange(len(s.graph.nodes))
    changes = {
        n: {k: one for k in ("dst", *SOURCES) if s.graph.nodes[n].args[k] == two}
        for n in _toy_nodes(s)
        if n >= after
    }
    return _with_graph(s, lists, {}, changes)


def wrong_kind(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    kinds = ["weight", "input", "scratch", "state", "output", "flagged"]
    return _with_graph(s, lists, {dice.choice(list(s.graph.tensors)): dice.choice(kinds)}, {})


def other_source(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """A node reads another tensor, by an argument that is awaited or by one that is not."""
    number = dice.choice(_toy_nodes(s))
    change = {dice.choice(SOURCES): dice.choice([n for n in s.graph.tensors if n != "w"])}
    return _with_graph(s, lists, {}, {number: change})


def wrongly_immutable(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    some = [n for n in _toy_nodes(s) if s.graph.nodes[n].args["s0"] is not None]
    if not some:
        return None
    number = dice.choice(some)
    other = dice.choice(list(s.graph.tensors))
    return _with_graph(s, lists, {}, {number: {"s0": other, "frozen": dice.randint(0, 1)}})


QUIET = (
    dropped_signal_retargeted,
    missing_wait,
    missing_edge,
    redirected_wait,
    extra_wait,
    split_record,
    swapped_order,
    moved_record,
)


def several_faults(dice: random.Random, lists: Lists, s: Schedule) -> Schedule | None:
    """Faults on top of each other, none of which shows in a count."""
    for mutation in dice.sample(QUIET, dice.randint(2, 3)):
        s = mutation(dice, copy_lists(s), s) or s
    return s


SCHEDULE_MUTATIONS: tuple[Mutation, ...] = (
    dropped_signal,
    dropped_signal_retargeted,
    wrong_target,
    wrong_amount,
    overflowing_sum,
    swapped_order,
    duplicated_task,
    dropped_record,
    missing_wait,
    missing_edge,
    hidden_wait,
    redirected_wait,
    redirected_signal,
    extra_wait,
    changed_run,
    swapped_runs,
    split_record,
    changed_tensor,
    changed_field,
    moved_record,
    merged_lists,
    shuffled_workers,
    several_faults,
)
GRAPH_MUTATIONS: tuple[Mutation, ...] = (
    moved_box,
    overlapping_buffers,
    wrong_kind,
    other_source,
    wrongly_immutable,
)
