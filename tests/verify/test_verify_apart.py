"""Boxes that a node's tiles write apart: other nodes wait for all of its records."""

from pathlib import Path

import numpy as np
import pytest

from mkport.declare import RECORD, Op, read, tensor, whole, write
from mkport.plan import Graph, Schedule, deal
from mkport.verify import Refused, verify


def op_of(name: str, mode, **options) -> Op:  # type: ignore[no-untyped-def]
    return Op(
        name=name,
        doc="",
        args=(tensor("x", "f32", ""),),
        tiles=lambda a: 8,
        access=lambda a, tile: whole(a, "x", mode, **options),
        order="",
        folder=Path(),
    )


def schedule_of(**options: bool) -> Schedule:
    writer, reader = op_of("writer", write, **options), op_of("reader", read, **options)
    graph = Graph()
    graph.tensor("x", "f32", (16,), "scratch")
    graph.add(writer, "first", x="x")
    graph.add(reader, "second", x="x")
    return deal(graph, 3, "strided")


def test_tiles_of_one_box_have_two_writers_unless_they_are_apart() -> None:
    verify(schedule_of(apart=True))
    with pytest.raises(Refused, match="both write"):
        verify(schedule_of())


@pytest.mark.parametrize("worker", range(3))
def test_a_reader_waits_for_all_records_of_a_node_that_writes_apart(worker: int) -> None:
    schedule = schedule_of(apart=True)
    lists = [records.copy() for records in schedule.lists]
    lists[worker][1, RECORD["waits"].first] = -1
    with pytest.raises(Refused, match="nothing orders them"):
        verify(Schedule(schedule.graph, tuple(lists), schedule.counters))


def test_a_wait_for_the_last_record_alone_is_not_enough() -> None:
    schedule = schedule_of(apart=True)
    lists = [records.copy() for records in schedule.lists]
    waits, signal = RECORD["waits"].first, RECORD["signal"].first
    for records in lists[:2]:
        records[0, signal] = -1  # only the last worker's first record signals
    for records in lists:
        records[1, waits + 1] = lists[2][0, signal + 1]
    with pytest.raises(Refused, match="nothing orders them"):
        verify(Schedule(schedule.graph, tuple(lists), schedule.counters))


def test_bounds_are_whole_tensors() -> None:
    graph = schedule_of(apart=True).graph
    (access,) = graph.nodes[0].accesses
    assert access.apart and np.array_equal(np.asarray(access.box), [(0, 16)])
