"""What the verifier accepts runs to the end with the same bits, whoever moves first."""

import random
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mkport.declare import RECORD
from mkport.machines.interpret import Stuck, Waiting, interpret
from mkport.plan import Graph, Node, Schedule, deal
from mkport.plan.depend import JOIN
from mkport.verify import Refused, verify
from tests.verify.mutants import SIGNAL, WAITS, copy_lists, missing_edge
from tests.verify.toys import execute, fresh_memory, random_graph

INTERLEAVINGS = 100
NEAR_WRAP = 2**31 - 5


def _bits(memory: dict[str, np.ndarray]) -> bytes:
    return b"".join(tensor.tobytes() for tensor in memory.values())


def _program_order(graph: Graph, steps: int = 1) -> bytes:
    memory = fresh_memory(graph)
    for _ in range(steps):
        for node in graph.nodes:
            for tile in range(node.tiles):
                execute(node, tile, memory)
    return _bits(memory)


def _interleaved(schedule: Schedule, seed: int, steps: int = 1, start: int = 0) -> bytes:
    memory = fresh_memory(schedule.graph)
    turns = interpret(schedule, partial(execute, memory=memory), seed, steps, start)
    assert len(turns) == steps * sum(max(node.tiles, 1) for node in schedule.graph.nodes)
    return _bits(memory)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    workers=st.integers(1, 9),
    share=st.sampled_from(["blocks", "strided"]),
)
@example(seed=4, workers=5, share="strided")  # has joins
def test_same_bits_under_all_interleavings(seed: int, workers: int, share: str) -> None:
    schedule = deal(random_graph(seed), workers, share)  # type: ignore[arg-type]
    verify(schedule)
    want = _program_order(schedule.graph)
    assert {_interleaved(schedule, turn) for turn in range(INTERLEAVINGS)} == {want}


def test_random_graphs_have_joins() -> None:
    graphs = [deal(random_graph(seed), 2).graph for seed in range(50)]
    assert sum(any(node.op is JOIN for node in graph.nodes) for graph in graphs) >= 5


@pytest.mark.parametrize("start", [0, 7, NEAR_WRAP, -(2**31), -3])
def test_counters_grow_over_steps_and_wrap(start: int) -> None:
    for seed in range(5):
        schedule = deal(random_graph(seed), 4)
        want = _program_order(schedule.graph, steps=4)
        for turn in range(5):
            assert _interleaved(schedule, turn, steps=4, start=start) == want


def test_a_missing_edge_shows_in_the_bits() -> None:
    """The interleavings can tell: what the verifier refuses for its order does change results."""
    refused = differing = 0
    for seed in range(30):
        schedule = deal(random_graph(seed), 4)
        mutant = missing_edge(random.Random(seed), copy_lists(schedule), schedule)
        if mutant is None:
            continue
        try:
            verify(mutant)
        except Refused:
            refused += 1
            want = _program_order(schedule.graph)
            differing += any(_interleaved(mutant, turn) != want for turn in range(INTERLEAVINGS))
    assert refused >= 10
    assert differing >= refused // 2


def _chain() -> Schedule:
    """Two nodes in a row on two workers; the second waits for 12 tiles or fewer of the first."""
    return deal(random_graph(1), 2)


def _nothing(node: Node, tile: int) -> None:
    """A body that does nothing."""


def test_stuck_names_the_frontier() -> None:
    schedule = _chain()
    worker, index = next(
        (w, i)
        for w, rows in enumerate(schedule.lists)
        for i, r in enumerate(rows)
        if r[SIGNAL] >= 0
    )
    counter, amount = (int(v) for v in schedule.lists[worker][index, SIGNAL : SIGNAL + 2])
    schedule.lists[worker][index, SIGNAL] = -1
    total = amount + sum(
        int(r[SIGNAL + 1]) for rows in schedule.lists for r in rows if r[SIGNAL] == counter
    )
    with pytest.raises(Stuck) as caught:
        interpret(schedule, _nothing, seed=0)
    for waiting in caught.value.frontier:
        record = schedule.lists[waiting.worker][waiting.record]
        assert waiting == Waiting(
            waiting.worker, waiting.record, counter, seen=total - amount, wanted=total
        )
        assert counter in record[WAITS : RECORD["waits"].end : 2]
        assert (
            f"{schedule.describe(waiting.worker, waiting.record)} has seen {total - amount} on "
            f"counter {counter} and wants {total}"
        ) in str(caught.value)
    assert str(caught.value).startswith("no worker can move in step 0: ")


def test_one_seed_gives_one_order() -> None:
    schedule = _chain()
    orders = {seed: interpret(schedule, _nothing, seed) for seed in (1, 2)}
    assert orders[1] == interpret(schedule, _nothing, 1) != orders[2]
