"""Which scratch is flagged, what is then waited for, and what the verifier says of it."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from mkport.declare import RECORD, Access, Bound, Op, tensor, write
from mkport.machines.cpu.machine import CpuMachine
from mkport.plan import Graph, Schedule, deal, flag, flagged_for, is_flagged
from mkport.plan.depend import plan
from mkport.testing import tiny
from mkport.verify import Refused, verify
from tests.verify.toys import COLUMNS, MIX, ROWS


def graph_of(family: str = "cohere2_moe") -> Graph:
    return tiny.graphs(tiny.SHAPE)[family]


@pytest.mark.parametrize("family", ["llama", "cohere2_moe", "qwen3_moe", "mixtral"])
def test_every_use_is_a_tensor_of_its_own(family: str) -> None:
    graph = graph_of(family)
    flagged = flag(graph)
    assert [n.label for n in flagged.nodes] == [n.label for n in graph.nodes]
    assert flagged.ops[: len(graph.ops)] == graph.ops
    kinds = {name.split(".")[0]: spec.kind for name, spec in flagged.tensors.items()}
    for name in ("h", "q", "attended"):
        assert kinds[name] == "flagged"
    assert kinds["partial"] == "scratch"  # joined by an op that does not await it
    for name, spec in flagged.tensors.items():
        if spec.kind == "flagged":
            writers = [
                node.label
                for node in flagged.nodes
                if any(a.mode != "read" and node.args[a.arg] == name for a in node.accesses)
            ]
            assert len(writers) == 1, name
    verify(deal(flagged, 3, "strided"))


def test_nobody_waits_for_what_is_awaited() -> None:
    flagged = flag(graph_of())
    planned = plan(flagged)
    labels = [node.label for node in planned.graph.nodes]
    q = labels.index("layer 1 / q_proj")
    assert planned.waits[q] == ()
    assert [labels[n] for n in planned.awaits[q]] == ["layer 0 / combine_experts"] or [
        labels[n] for n in planned.awaits[q]
    ] == ["layer 1 / norm"]
    attention = labels.index("layer 1 / attention")
    assert {labels[n] for n in planned.waits[attention]} >= {"layer 1 / k_proj", "layer 1 / v_proj"}
    counters = deal(graph_of(), 3, "strided").counters
    assert deal(flagged, 3, "strided").counters < counters / 2


def test_steps_of_more_rows_keep_their_counters() -> None:
    graph = graph_of()
    assert flagged_for(graph, 3) is graph
    assert is_flagged(flagged_for(graph, 2)) and not is_flagged(graph)


def refused(schedule: Schedule, match: str) -> None:
    with pytest.raises(Refused, match=match) as caught:
        verify(schedule)
    assert caught.value.problems


def test_a_list_out_of_program_order_is_refused() -> None:
    schedule = deal(flag(graph_of()), 3, "strided")
    lists = [records.copy() for records in schedule.lists]
    nodes = lists[0][:, RECORD["node"].first]
    later = int(np.flatnonzero(np.diff(nodes) > 0)[5])
    lists[0][[later, later + 1]] = lists[0][[later + 1, later]]
    refused(replace(schedule, lists=tuple(lists)), "runs behind a later node|circle")


def deaf(op: Op) -> Op:
    return replace(op, awaits=()) if op.name == "moe_down" else op


def test_who_does_not_await_is_refused() -> None:
    flagged = flag(graph_of())
    same = Graph([deaf(op) for op in flagged.ops])
    same.tensors = flagged.tensors
    for node in flagged.nodes:
        same.add(deaf(node.op), node.label, **node.args)
    refused(deal(same, 3, "strided"), "flagged, but does not await its (slots|pairs|act)")


def test_a_second_writer_is_refused() -> None:
    flagged = flag(graph_of())
    node = next(n for n in flagged.nodes if n.op.name == "gemm")
    flagged.add(node.op, "again", **node.args)
    refused(deal(flagged, 3, "strided"), "one node may write it, once")


def counted_otherwise(graph: Graph, label: str) -> Graph:
    """The graph in which one node counts its rows by another input."""
    same = Graph(graph.ops)
    same.tensors = graph.tensors
    for node in graph.nodes:
        count = {"count": "logit_count"} if node.label == label else {}
        same.add(node.op, node.label, **(node.args | count))
    return same


def test_rows_of_another_count_are_not_awaited() -> None:
    """Nobody writes the rows behind the writer's count, and who has another may want them."""
    label = "layer 1 / q_proj"
    graph = tiny.graphs(replace(tiny.SHAPE, logits=tiny.SHAPE.rows))["cohere2_moe"]
    refused(
        deal(counted_otherwise(flag(graph), label), 3, "strided"),
        "layer 1 / q_proj reads h.1, .* counts rows by logit_count, its writer by count",
    )
    flagged = flag(counted_otherwise(graph, label))
    q = next(node for node in flagged.nodes if node.label == label)
    assert flagged.tensors[q.args["x"]].kind == "scratch"
    verify(deal(flagged, 3, "strided"))


@pytest.mark.parametrize("how", ["twice", "as data says"])
def test_a_word_is_written_once_by_its_tile_too(how: str) -> None:
    def twice(a: Bound, tile: np.ndarray) -> Iterator[Access]:
        for first in (0, 1):
            yield replace(write("dst", (0, ROWS), (first, COLUMNS)), apart=how == "as data says")

    op = replace(MIX, access=twice if how == "twice" else lambda a, t: list(twice(a, t))[:1])
    graph = Graph()
    graph.tensor("w", "f32", (ROWS, COLUMNS), "weight")
    graph.tensor("t", "f32", (ROWS, COLUMNS), "flagged")
    args = dict.fromkeys(("across", "width", "first", "whole", "lo", "hi", "frozen"), 0)
    graph.add(op, "fill", dst="t", w="w", down=1, **(args | {"across": 1}))
    refused(deal(graph, 1), "writes words of t twice, or where its data says")


def test_half_a_word_tells_nothing() -> None:
    halves = replace(MIX, args=(tensor("dst", "bf16", "written"), *MIX.args[1:]))
    graph = Graph()
    graph.tensor("w", "f32", (ROWS, COLUMNS), "weight")
    graph.tensor("t", "bf16", (ROWS, COLUMNS), "flagged")
    args = dict.fromkeys(("first", "whole", "lo", "hi", "frozen"), 0)
    graph.add(halves, "fill", dst="t", w="w", down=1, across=1, width=COLUMNS, **args)
    refused(deal(graph, 1), "t is flagged, but only words of 4 bytes .* it holds bf16")


def test_a_cpu_refuses_them() -> None:
    schedule = deal(flag(graph_of()), 2)
    with pytest.raises(ValueError, match="do not await"):
        CpuMachine(tiny.program("bf16"), schedule, {})
