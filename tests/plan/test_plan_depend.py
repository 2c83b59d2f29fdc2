"""Derived dependencies: reduced, at most four, joined where there are more; lists keep order."""

import random

import numpy as np
import pytest

from mkport.declare import RECORD
from mkport.errors import UserError
from mkport.plan import Graph, deal, plan, run_of, signal_of, waits_of
from mkport.plan.depend import JOIN, Planned
from tests.verify.toys import MIX, random_graph

SEEDS = range(60)
WHOLE = {
    **{"down": 1, "across": 3, "width": 4, "first": 0},
    **{"whole": 1, "lo": 0, "hi": 12, "frozen": 0},
}


def _ancestors(planned: Planned) -> list[set[int]]:
    result: list[set[int]] = []
    for needs in planned.waits:
        result.append(set(needs).union(*(result[n] for n in needs)))
    return result


def _graph(*nodes: tuple[str, str, dict]) -> Graph:
    """Nodes of (label, written tensor, changed arguments) over the state tensors a to g."""
    g = Graph()
    g.tensor("w", "f32", (2, 12), "weight")
    for name in "abcdefg":
        g.tensor(name, "f32", (2, 12), "state")
    for label, dst, args in nodes:
        g.add(MIX, label, dst=dst, w="w", **(WHOLE | args))
    return g


def _waits(graph: Graph) -> dict[str, list[str]]:
    planned = plan(graph)
    labels = [node.label for node in planned.graph.nodes]
    return {labels[n]: [labels[m] for m in needs] for n, needs in enumerate(planned.waits)}


def test_read_after_write_write_after_read_write_after_write() -> None:
    graph = _graph(
        ("one", "a", {}),
        ("raw", "b", {"s0": "a"}),
        ("war", "a", {}),
        ("waw", "a", {}),
        ("apart", "c", {}),
    )
    assert _waits(graph) == {
        "one": [],
        "raw": ["one"],
        "war": ["raw"],
        "waw": ["war"],
        "apart": [],
    }


def test_disjoint_columns_do_not_wait() -> None:
    graph = _graph(
        ("left", "a", {"across": 1}),
        ("right", "a", {"across": 2, "first": 4}),
        ("reads left", "b", {"s0": "a", "hi": 4}),
        ("reads both", "c", {"s0": "a"}),
    )
    assert _waits(graph)["right"] == []
    assert _waits(graph)["reads left"] == ["left"]
    assert _waits(graph)["reads both"] == ["right", "left"]


def test_implied_dependencies_are_dropped() -> None:
    graph = _graph(("a", "a", {}), ("b", "b", {"s0": "a"}), ("c", "c", {"s0": "a", "s1": "b"}))
    assert _waits(graph)["c"] == ["b"]


def test_more_than_four_dependencies_go_through_a_join() -> None:
    makers: list[tuple[str, str, dict]] = [(name, name, {}) for name in "abcdef"]
    sources = {f"s{i}": name for i, name in enumerate("abcdef")}
    waits = _waits(_graph(*makers, ("all", "g", sources)))
    assert waits["all"] == ["b", "a", "join before all"]
    assert waits["join before all"] == ["f", "e", "d", "c"]


@pytest.mark.parametrize("seed", SEEDS)
def test_waits_are_reduced_and_at_most_four(seed: int) -> None:
    planned = plan(random_graph(seed))
    ancestors = _ancestors(planned)
    for number, needs in enumerate(planned.waits):
        assert len(needs) <= 4
        assert len(set(needs)) == len(needs)
        assert all(n < number for n in needs)
        for n in needs:  # nothing that another wait implies
            assert not any(n in ancestors[other] for other in needs if other != n)


@pytest.mark.parametrize("seed", SEEDS)
def test_joins_only_where_they_are_needed(seed: int) -> None:
    graph = random_graph(seed)
    planned = plan(graph)
    assert [n for n in planned.graph.nodes if n.op is not JOIN] == graph.nodes
    for number, node in enumerate(planned.graph.nodes):
        if node.op is JOIN:
            assert node.tiles == 0
            assert len(planned.waits[number]) == 4
            assert sum(number in needs for needs in planned.waits) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_lists_are_subsequences_of_program_order(seed: int) -> None:
    dice = random.Random(seed)
    share = dice.choice(["blocks", "strided"])
    schedule = deal(random_graph(seed), dice.randint(1, 8), share)  # type: ignore[arg-type]
    seen: dict[int, list[int]] = {n: [] for n in range(len(schedule.graph.nodes))}
    for records in schedule.lists:
        nodes = records[:, RECORD["node"].first]
        assert (np.diff(nodes) > 0).all()
        for record in records:
            seen[int(record[RECORD["node"].first])] += run_of(record).tolist()
    for number, tiles in seen.items():
        assert sorted(tiles) == list(range(schedule.graph.nodes[number].tiles))


@pytest.mark.parametrize("seed", SEEDS)
def test_targets_are_the_sums_of_signals(seed: int) -> None:
    schedule = deal(random_graph(seed), 5)
    records = [record for rows in schedule.lists for record in rows]
    total = [0] * schedule.counters
    for record in records:
        counter, amount = signal_of(record)
        if counter >= 0:
            total[counter] += amount
    for record in records:
        assert all(target == total[counter] for counter, target in waits_of(record))
    assert all(total)


@pytest.mark.parametrize("workers", [0, -1, 10_000])
def test_worker_counts_that_make_no_sense(workers: int) -> None:
    with pytest.raises(UserError, match=f"{workers} workers asked for"):
        deal(random_graph(0), workers)


def test_idle_workers_have_empty_lists() -> None:
    schedule = deal(_graph(("one", "a", {})), 8)
    assert [len(records) for records in schedule.lists] == [1, 1, 1, 0, 0, 0, 0, 0]
