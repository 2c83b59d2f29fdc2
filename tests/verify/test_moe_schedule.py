"""Mixtures of experts under the verifier: one proof for every routing, and routings to test it.

What a tile of an expert writes depends on data. It is declared in coordinates that do not: as the
row of its slot. That stands for every routing because a pair of token and expert lies in exactly
one slot, and because there are never more slots than a schedule holds; both are tested here too.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkport.compose import compose_cpu
from mkport.declare import RECORD, RECORD_WORDS, spread_step
from mkport.declare.case import Case
from mkport.declare.record import NO_COUNTER
from mkport.library import find_op
from mkport.machines.cpu.build import build
from mkport.machines.cpu.memory import POISON, allocate
from mkport.machines.interpret import interpret
from mkport.plan import Graph, Node, Schedule, deal, signal_of, waits_of
from mkport.plan.depend import plan
from mkport.testing.forms import run_ported
from mkport.testing.parts import load_part
from mkport.verify import Footprint, Refused, verify
from tests.kernels.moe_chain import OPS, Arrays, Sizes, chain, random_arrays, run
from tests.verify.mutants import NODE, SIGNAL, WAITS, copy_lists, rebuild
from tests.verify.reference import Facts, is_safe

TINY = Sizes(tokens=3, experts=4, top=2, hidden=32, ffn=32, layers=2)
ROUTED = Sizes(tokens=6, experts=7, top=2, hidden=32, ffn=32, layers=2)
ROUTINGS = 200
PROGRAM = compose_cpu([find_op(name) for name in OPS], "bf16", "bf16")


class Bodies:
    """The real bodies on the tensors of a graph, a tile at a time."""

    def __init__(self, graph: Graph, arrays: Arrays) -> None:
        self.graph = graph
        self.tensors = {name: allocate(s.dtype, s.shape) for name, s in graph.tensors.items()}
        for name, spec in graph.tensors.items():
            self.tensors[name][...] = POISON[spec.dtype] if name not in arrays else arrays[name]
        self.table = np.array([t.ctypes.data for t in self.tensors.values()], np.int64)
        most = max(node.op.arena(node.bound) for node in graph.nodes)
        self.arena = allocate("f32", (most // 4 + 16,))
        self.run_worker = build(PROGRAM).run_worker
        self.records = {id(node): self._record(node) for node in graph.nodes}

    def _record(self, node: Node) -> np.ndarray:
        record = np.zeros(RECORD_WORDS, np.int32)
        record[WAITS] = record[SIGNAL] = NO_COUNTER
        record[RECORD["op"].first] = PROGRAM.ops.index(node.op)
        words = node.op.encode(node.args, self.graph.tensor_ids())
        record[RECORD["args"].first : RECORD["args"].first + len(words)] = words
        return record

    def execute(self, node: Node, tile: int) -> None:
        """Runs one tile; its arena holds garbage before."""
        if not node.tiles:
            return
        record = self.records[id(node)]
        record[RECORD["run"].first : RECORD["run"].end] = (tile, 1, 1)
        self.arena[...] = np.nan
        addresses = (record.ctypes.data, 1, self.table.ctypes.data, 0, 0, self.arena.ctypes.data)
        self.run_worker(0, *addresses, 0, 0, 0, 0)

    def bits(self) -> bytes:
        """What a step leaves for the next one, and the last layer's choices."""
        return self.tensors["x"].tobytes() + self.tensors["ids"].tobytes()


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8, 132])
@pytest.mark.parametrize("tokens", [1, 8])
def test_chain_verifies(workers: int, tokens: int) -> None:
    sizes = Sizes(tokens=tokens, experts=16, top=4, hidden=128, ffn=64, layers=3)
    for share in ("blocks", "strided"):
        schedule = deal(chain(sizes), workers, share)
        report = verify(schedule, resident=workers)
        assert report.workers == workers


def test_wide_layer_verifies() -> None:
    sizes = Sizes(tokens=8, experts=128, top=8, hidden=2048, ffn=768, layers=2)
    report = verify(deal(chain(sizes), 132, "strided"))
    assert report.seconds < 20  # a fraction of one is usual; a loaded machine may take longer


def _without(schedule: Schedule) -> Iterator[tuple[str, int, int, Node, Schedule]]:
    """The schedule with one signal or one wait deleted: (which, worker, counter, node, mutant)."""
    for worker, records in enumerate(schedule.lists):
        for index in range(len(records)):
            counter, _ = signal_of(records[index])
            node = schedule.graph.nodes[records[index, NODE]]
            if counter >= 0:
                lists = copy_lists(schedule)
                lists[worker][index][SIGNAL] = -1
                yield "signal", worker, counter, node, rebuild(schedule, lists)
            for slot, (counter, _) in enumerate(waits_of(records[index])):
                lists = copy_lists(schedule)
                record, at = lists[worker][index], WAITS + 2 * slot
                record[at : SIGNAL - 2] = record[at + 2 : SIGNAL].copy()
                record[SIGNAL - 2 : SIGNAL] = (-1, 0)
                yield "wait", worker, counter, node, rebuild(schedule, lists)


def _refused(schedule: Schedule, footprint: Footprint) -> bool:
    try:
        verify(schedule, footprint=footprint)
    except Refused:
        return True
    return False


@pytest.mark.parametrize(
    ("workers", "share", "at_once"),
    [
        *((workers, share, False) for workers in (2, 3, 6) for share in ("blocks", "strided")),
        (3, "blocks", True),
        (3, "strided", True),
    ],
)
def test_deleting_any_signal_or_wait_is_refused(workers: int, share: str, at_once: bool) -> None:
    """Every one but the few that the slow reference, too, calls redundant.

    A node waits for a whole node; where its tiles on one worker need only what that worker has
    done itself, their wait adds nothing. Blocks of experts' tiles always need other workers'.
    """
    schedule = deal(chain(replace(TINY, at_once=at_once)), workers, share)  # type: ignore[arg-type]
    facts, footprint = Facts(schedule.graph), Footprint.of(schedule.graph)
    refused = {"signal": 0, "wait": 0}
    for what, worker, counter, node, mutant in _without(schedule):
        found = _refused(mutant, footprint)
        assert found != is_safe(mutant, facts)
        refused[what] += found
        if share == "blocks" and node.op.name in ("moe_up", "moe_down", "moe_combine"):
            signallers = {
                w for w, rows in enumerate(schedule.lists) for r in rows if r[SIGNAL] == counter
            }
            assert found or signallers == {worker}
    waits = sum(len(waits_of(r)) for rows in schedule.lists for r in rows)
    assert refused["signal"] == sum(int((rows[:, SIGNAL] >= 0).sum()) for rows in schedule.lists)
    assert refused["wait"] >= waits * 2 // 3


def _routed(dice: random.Random) -> Arrays:
    """Tensors whose routing is random: spread, crowded, with rows that are idle or not finite."""
    rows = dice.randint(1, ROUTED.tokens)
    arrays = random_arrays(ROUTED, np.random.default_rng(dice.randrange(2**32)), rows)
    for t in range(1, rows):
        if dice.random() < 0.3:
            arrays["x"][t] = arrays["x"][t - 1]  # the same experts
        if dice.random() < 0.1:
            arrays["x"][t, 3] = np.inf
    return arrays


def _program_order(graph: Graph, arrays: Arrays) -> Bodies:
    bodies = Bodies(graph, arrays)
    for node in graph.nodes:
        for tile in range(node.tiles):
            bodies.execute(node, tile)
    return bodies


def _interleaved(schedule: Schedule, arrays: Arrays, seed: int) -> bytes:
    bodies = Bodies(schedule.graph, arrays)
    interpret(schedule, bodies.execute, seed)
    return bodies.bits()


def test_same_bits_under_every_routing_and_interleaving() -> None:
    graph, at_once = (chain(replace(ROUTED, at_once=b), PROGRAM.ops) for b in (False, True))
    schedules = [deal(graph, 2), deal(at_once, 3, "strided"), deal(graph, 5, "strided")]
    for schedule in schedules:
        verify(schedule)  # once: no routing is looked at
    used = set()
    for seed in range(ROUTINGS):
        dice = random.Random(seed)
        arrays = _routed(dice)
        bodies = _program_order(schedules[0].graph, arrays)
        used.add(bodies.tensors["slots"].tobytes())
        for _ in range(2):
            schedule = dice.choice(schedules)
            assert _interleaved(schedule, arrays, dice.randrange(2**32)) == bodies.bits()
    assert len(used) > ROUTINGS * 3 // 4  # the routings did differ


def test_interleavings_can_tell() -> None:
    """Schedules that the verifier refuses for a missing wait do give other bits."""
    schedule = deal(chain(ROUTED, PROGRAM.ops), 3, "strided")
    footprint = Footprint.of(schedule.graph)
    arrays = random_arrays(ROUTED, np.random.default_rng(0), ROUTED.tokens)
    want = _program_order(schedule.graph, arrays).bits()
    refused = [m for what, *_, m in _without(schedule) if what == "wait" and _refused(m, footprint)]
    seen = sum(any(_interleaved(m, arrays, s) != want for s in range(12)) for m in refused)
    assert seen > len(refused) // 2


@settings(max_examples=60)
@given(data=st.data(), tokens=st.integers(1, 9), experts=st.integers(1, 12))
def test_each_pair_lies_in_exactly_one_slot(data: st.DataObject, tokens: int, experts: int) -> None:
    k = data.draw(st.integers(1, experts))
    rows = data.draw(st.integers(0, tokens))
    lost = data.draw(st.sets(st.integers(0, tokens - 1), max_size=3))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    favourites = rng.permutation(experts)[: rng.integers(k, experts + 1)]
    case = load_part(find_op("moe_group"), "oracle").make(
        rng, "bf16", "bf16", tokens=tokens, rows=rows, experts=experts, k=k, lost=sorted(lost)
    )
    for t in set(range(rows)) - lost:
        case.arrays["ids"][t] = rng.permutation(favourites)[:k]
    got = run_ported(find_op("moe_group"), case, PROGRAM)
    ids, slots, pairs = case.arrays["ids"][:rows].ravel(), got["slots"], got["pairs"]
    live = np.flatnonzero(ids >= 0)
    used = int((slots[:, 0] >= 0).sum())
    assert used <= min(experts, rows * k) and used <= len(slots) - 1
    assert (np.diff(slots[:used, 0]) > 0).all()  # each expert in one slot, ascending
    assert (slots[used:] == (-1, len(live))).all()
    seen = pairs[: len(live)]
    np.testing.assert_array_equal(np.sort(seen), live)  # every pair, once
    np.testing.assert_array_equal(
        ids[seen], np.repeat(slots[:used, 0], np.diff(slots[: used + 1, 1]))
    )


@settings(max_examples=30)
@given(data=st.data(), tokens=st.integers(1, 8), experts=st.integers(1, 12))
def test_a_choice_that_groups_gives_the_same_lists(
    data: st.DataObject, tokens: int, experts: int
) -> None:
    k, rows = data.draw(st.integers(1, experts)), data.draw(st.integers(0, tokens))
    lost = sorted(data.draw(st.sets(st.integers(0, tokens - 1), max_size=3)))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    topk, group = find_op("topk"), find_op("moe_group")
    case = load_part(topk, "oracle").make(
        rng, "bf16", "bf16", tokens=tokens, rows=rows, experts=experts, k=k, lost=lost, group=1
    )
    got = run_ported(topk, case, PROGRAM)
    arrays = {"count": case.arrays["count"], "ids": got["ids"]}
    arrays |= {name: case.arrays[name].copy() for name in ("pairs", "slots")}
    values = {name: case.values[name] for name in ("experts", "k", "slot_count")}
    want = run_ported(group, Case(arrays, values, ("slots", "pairs")), PROGRAM)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize(("name", "output"), [("moe_up", "act"), ("moe_down", "y")])
@pytest.mark.parametrize("seed", range(5))
def test_a_tile_writes_what_its_declaration_stands_for(name: str, output: str, seed: int) -> None:
    """Tile by tile on poisoned memory: its slot's pairs and its columns, all of them, no more."""
    op = find_op(name)
    case: Case = load_part(op, "oracle").make(
        np.random.default_rng(seed), "bf16", "bf16", tokens=7, experts=5, top=2, n=37, k=32, lost=4
    )
    case.arrays[output][:] = np.nan
    graph = Graph(PROGRAM.ops)
    for arg in op.tensors:
        if arg.name not in case.arrays:
            continue
        array = case.arrays[arg.name]
        dtype = {"uint16": "bf16", "int32": "i32", "float32": "f32"}[str(array.dtype)]
        kind = "state" if arg.name == output else "input"
        logical = case.logical.get(arg.name, ())
        graph.tensor(arg.name, dtype, array.shape, kind, logical)  # type: ignore[arg-type]
    node = graph.add(op, name, **{name: name for name in case.arrays}, **case.values)
    bodies = Bodies(graph, case.arrays)
    box = next(a.box for a in node.accesses if a.mode == "write")
    slots, pairs = case.arrays["slots"], case.arrays["pairs"]
    for tile in range(node.tiles):
        bodies.tensors[output][:] = np.nan
        bodies.execute(node, tile)
        (slot, _), (low, high) = ((int(np.take(b, tile)) for b in r) for r in box)
        places = np.arange(slots[slot, 1], slots[slot + 1, 1])
        want = np.zeros(bodies.tensors[output].shape, bool)
        want[places if name == "moe_up" else pairs[places], low:high] = True
        np.testing.assert_array_equal(~np.isnan(bodies.tensors[output]), want)


def test_too_few_slots_are_refused() -> None:
    sizes = replace(TINY, layers=1)
    good = chain(sizes)
    with pytest.raises(ValueError, match="4 slots"):
        _changed(good, "moe_group", slot_count=3)
    with pytest.raises(ValueError, match="4 distinct experts"):
        _changed(chain(replace(sizes, at_once=True)), "topk", slot_count=3)
    with pytest.raises(ValueError, match="slots 1 to 5 of the 4 in slots, .*not so many"):
        _changed(good, "moe_up", first_slot=1)
    with pytest.raises(ValueError, match="5, 32.* for 6 pairs: there are not so many"):
        _changed(good, "moe_down", act="y", y="short")


def _changed(graph: Graph, op: str, **changes: int | str) -> None:
    """Derives the accesses of a graph's first node of this op, with other arguments."""
    node = next(n for n in graph.nodes if n.op.name == op)
    if "short" not in graph.tensors:
        graph.tensor("short", "f32", (5, 32), "scratch", (4, 32))
    assert Graph.add(graph, node.op, "changed", **(node.args | changes)).accesses


@pytest.mark.parametrize(
    ("op", "parts", "said"),
    [
        ("moe_up", [(0, 3)], "down: .* computed slots of act: 4 here, but 3 in .*up"),
        ("moe_up", [(1, 3)], "up: .* computed slots of act: 1 here, but 4 in .*up"),
        ("moe_up", [(0, 1), (2, 2)], "up: .* computed slots of act: 2 here, but 1 in .*up"),
        ("moe_up", [(0, 2), (1, 3)], "up: .* computed slots of act: 1 here, but 2 in .*up"),
        ("moe_down", [(0, 3)], "combine: .* computed slots of y: 4 here, but 3 in .*down"),
        ("moe_down", [(1, 3)], "down: .* computed slots of y: 1 here, but 4 in .*down"),
    ],
)
def test_a_slot_that_is_not_computed_once_is_refused(
    op: str, parts: list[tuple[int, int]], said: str
) -> None:
    """Of the last layer's four slots: another layer left its own in the same tensors."""
    graph = chain(TINY)
    last = max(n for n, node in enumerate(graph.nodes) if node.op.name == op)
    changed = Graph()
    changed.tensors = graph.tensors
    for n, node in enumerate(graph.nodes):
        for first, count in parts if n == last else [(0, 4)]:
            part = {"first_slot": first, "slot_count": count, "slot_step": spread_step(count)}
            own = part if node.op.name in ("moe_up", "moe_down") else {}
            changed.add(node.op, node.label, **(node.args | own))
    with pytest.raises(Refused, match=said):
        verify(deal(changed, 2))


def test_more_slots_than_pairs_are_refused() -> None:
    """A GPU's worker takes slot i of one token for its pair i."""
    graph = chain(Sizes(tokens=1, experts=4, top=2, hidden=32, ffn=32))
    node = next(node for node in graph.nodes if node.op.name == "moe_up")
    graph.tensor("longer", "i32", (4, 2), "input")
    graph.tensor("wider", "f32", (2, 32), "scratch", (3, 32))
    graph.add(node.op, "again", **(node.args | {"slots": "longer", "act": "wider"}))
    with pytest.raises(Refused, match=r"slots is \[4, 2\], of 3 slots, more than the 2 pairs"):
        verify(deal(graph, 2))


def test_two_nodes_may_share_a_layer_s_slots() -> None:
    """The second half of each part waits for its own first half alone; bits are those of one."""
    sizes = replace(TINY, layers=1, first_part=1)
    planned = plan(chain(sizes, PROGRAM.ops))
    ups, downs = ([n for n, node in enumerate(planned.graph.nodes) if node.op.name == name]
                  for name in ("moe_up", "moe_down"))  # fmt: skip
    assert [planned.waits[down] for down in downs] == [(up,) for up in ups] and len(ups) == 2
    arrays = random_arrays(sizes, np.random.default_rng(3), sizes.tokens)
    one, two = (run(s, arrays, PROGRAM)["x"] for s in (replace(sizes, first_part=0), sizes))
    assert one.tobytes() == two.tobytes() and np.isfinite(one).all()


def test_slots_that_would_be_walked_twice_are_refused() -> None:
    """A step with a divisor of the slot count comes to some slots twice and to others never."""
    graph = chain(replace(TINY, layers=1))
    twice = Graph()
    twice.tensors = graph.tensors
    for node in graph.nodes:
        change = {"slot_step": 2} if node.op.name == "moe_down" else {}
        twice.add(node.op, node.label, **(node.args | change))
    with pytest.raises(Refused, match=r"down.*slot_step is 2, which has a divisor of"):
        verify(deal(twice, 2))


@given(slots=st.integers(1, 2000))
def test_slot_step_visits_every_slot(slots: int) -> None:
    assert len(set(np.arange(slots) * spread_step(slots) % slots)) == slots
