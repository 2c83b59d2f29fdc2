"""What a refusal says, word for word: one case of every kind of problem."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mkport.declare import Access, Op, tensor, write
from mkport.errors import UserError
from mkport.plan import Graph, Schedule, deal
from mkport.plan.depend import JOIN
from mkport.verify import Problem, Refused, verify
from tests.verify.mutants import NODE, OP, RUN, SIGNAL, WAITS
from tests.verify.toys import MIX, SOURCES

WHOLE = {
    **{"down": 1, "across": 3, "width": 4, "first": 0},
    **{"whole": 1, "lo": 0, "hi": 12, "frozen": 0},
}
X = ((0, 2), (0, 12))


def _graph(kind: str = "scratch", make: dict | None = None, use: dict | None = None) -> Graph:
    """Node "make" writes x in three tiles; node "use" reads all of x and writes y in three."""
    g = Graph()
    for name in ("w", "x", "y"):
        g.tensor(name, "f32", (2, 12), "weight" if name == "w" else kind)  # type: ignore[arg-type]
    g.add(MIX, "make", **(WHOLE | {"dst": "x", "w": "w"} | (make or {})))
    g.add(MIX, "use", **(WHOLE | {"dst": "y", "w": "w", "s0": "x"} | (use or {})))
    return g


def _schedule(*words: tuple[int, int, int, int], graph: Graph | None = None) -> Schedule:
    """Worker w runs make tile w, then use tile w; `words` are (worker, record, word, value)."""
    schedule = deal(graph or _graph(), 3)
    for worker, record, word, value in words:
        schedule.lists[worker][record, word] = value
    return schedule


def _problems(schedule: Schedule, resident: int | None = None) -> list[Problem]:
    with pytest.raises(Refused) as caught:
        verify(schedule, resident)
    assert isinstance(caught.value, UserError)
    first, more = caught.value.problems[0], len(caught.value.problems) - 1
    assert str(caught.value).startswith(f"Schedule refused: {first.message}")
    assert ("more problem" in str(caught.value)) == (more > 0)
    return caught.value.problems


def test_missing_wait_names_records_tile_and_edge() -> None:
    first, second = _problems(_schedule((1, 1, WAITS, -1)))
    assert first == Problem(
        "order",
        "make tile 0 (worker 0, record 0) writes x[0:2, 0:4], which use tile 1 (worker 1, record 1)"
        " reads, but nothing orders them. make tile 0 (worker 0, record 0) must happen before use "
        "tile 1 (worker 1, record 1): add a wait on counter 0 to use tile 1 (worker 1, record 1) or"
        " to a record before it in its list.",
        records=((0, 0), (1, 1)),
        tensor="x",
        box=((0, 2), (0, 4)),
        edge=((0, 0), (1, 1)),
    )
    assert second.records == ((2, 0), (1, 1))


def test_the_tile_is_where_the_boxes_meet_not_where_they_touch() -> None:
    schedule = deal(_graph(use={"lo": 8}), 2)
    schedule.lists[0][1, WAITS] = -1
    (problem,) = _problems(schedule)
    assert problem.records == ((1, 0), (0, 1))  # make tiles 1..2, of which only 2 is read
    assert problem.box == ((0, 2), (8, 12))


def test_write_after_read_without_a_counter() -> None:
    graph = _graph("state", make={"dst": "y", "s0": "x"}, use={"dst": "x", "s0": None})
    schedule = _schedule(graph=graph)
    for records in schedule.lists:
        records[0, SIGNAL] = records[1, WAITS] = -1
    before, after = "make tile 1 (worker 1, record 0)", "use tile 0 (worker 0, record 1)"
    assert _problems(schedule)[0] == Problem(
        "order",
        f"{before} reads x[0:2, 0:4], which {after} writes, but nothing orders them. {before} must "
        f"happen before {after}: add a signal to it and a wait for it to {after} or to a record "
        "before it in its list.",
        records=((1, 0), (0, 1)),
        tensor="x",
        box=((0, 2), (0, 4)),
        edge=((1, 0), (0, 1)),
    )


def test_wrong_direction() -> None:
    schedule = _schedule(graph=_graph("state"))
    for records in schedule.lists:
        records[0, WAITS : WAITS + 2], records[0, SIGNAL] = (0, 3), -1
        records[1, WAITS], records[1, SIGNAL : SIGNAL + 2] = -1, (0, 1)
        records[:] = records[::-1].copy()
    first = _problems(schedule)[0]
    assert first.message == (
        "make tile 0 (worker 0, record 1) writes x[0:2, 0:4], which use tile 0 (worker 0, record 0)"
        " reads, but the schedule runs them the other way round. make tile 0 (worker 0, record 1) "
        "must happen before use tile 0 (worker 0, record 0): move the second behind the first, with"
        " a signal to it and a wait for it if they are on different workers."
    )
    assert first.edge == ((0, 1), (0, 0))


def test_dropped_signal_names_who_should_signal() -> None:
    problems = _problems(_schedule((1, 0, SIGNAL, -1)))
    assert len(problems) == 3  # three records wait
    assert problems[0] == Problem(
        "target",
        "use tile 0 (worker 0, record 1) waits for 3 on counter 0, but the signals that reach it in"
        " a step add up to 2: it would wait for ever. make tile 1 (worker 1, record 0) must happen "
        "before it and signals nothing there: add a signal on counter 0 to it.",
        records=((0, 1), (1, 0)),
        edge=((1, 0), (0, 1)),
    )


@pytest.mark.parametrize(
    ("target", "fate"), [(4, "wait for ever"), (2, "start before all of them")]
)
def test_wrong_target(target: int, fate: str) -> None:
    (problem,) = _problems(_schedule((1, 1, WAITS + 1, target)))
    assert problem == Problem(
        "target",
        f"use tile 1 (worker 1, record 1) waits for {target} on counter 0, but the signals that "
        f"reach it in a step add up to 3: it would {fate}. The last of them is make tile 2 "
        "(worker 2, record 0). Set the target to 3.",
        records=((1, 1), (2, 0)),
    )


def test_signals_that_no_compare_can_hold() -> None:
    words = [(worker, 0, SIGNAL + 1, 2**31 - 1) for worker in range(3)]
    assert _problems(_schedule(*words))[0] == Problem(
        "target",
        "the signals of counter 0 add up to 6442450941 in a step, but at most 2147483647 can be "
        "told apart from a step that has not happened yet: use smaller amounts.",
    )


def test_the_largest_sum() -> None:
    words = [(0, 0, SIGNAL + 1, 2**30), (1, 0, SIGNAL + 1, 2**30 - 2), (2, 0, SIGNAL + 1, 1)]
    words += [(worker, 1, WAITS + 1, 2**31 - 1) for worker in range(3)]
    verify(_schedule(*words))
    (problem, *_) = _problems(_schedule(*words, (2, 0, SIGNAL + 1, 2)))
    assert problem.message.startswith("the signals of counter 0 add up to 2147483648 in a step")


def test_circle() -> None:
    schedule = _schedule()
    schedule.lists[1][:] = schedule.lists[1][::-1].copy()
    (problem,) = _problems(schedule)
    assert problem == Problem(
        "cycle",
        "records wait for each other in a circle: use tile 1 (worker 1, record 0) waits on counter "
        "0, which make tile 1 (worker 1, record 1) signals; that record comes after use tile 1 "
        "(worker 1, record 0) in its list. No worker of them could ever move: put every list into "
        "program order, or remove one of the waits.",
        records=((1, 0), (1, 1)),
    )


def test_tile_that_runs_twice_and_tile_that_never_runs() -> None:
    assert _problems(_schedule((1, 1, RUN, 0))) == [
        Problem(
            "coverage",
            "use tile 0 runs twice: in use tile 0 (worker 0, record 1) and in use tile 0 (worker 1,"
            " record 1): take it out of one.",
            records=((0, 1), (1, 1)),
        ),
        Problem("coverage", "use tile 1 is in no record: add it to a run."),
    ]


def _with_join() -> tuple[Schedule, int]:
    """A schedule on one worker, and its join's place."""
    g = Graph()
    for name in ("w", *"abcdef"):
        g.tensor(name, "f32", (2, 12), "weight" if name == "w" else "scratch")
    for name in "abcde":
        g.add(MIX, f"make {name}", **(WHOLE | {"dst": name, "w": "w"}))
    sources = dict(zip(SOURCES, "abcde", strict=False))
    g.add(MIX, "use", **(WHOLE | {"dst": "f", "w": "w"} | sources))
    schedule = deal(g, 1)
    node = next(n for n, node in enumerate(schedule.graph.nodes) if node.op is JOIN)
    return schedule, int(np.flatnonzero(schedule.lists[0][:, NODE] == node)[0])


def test_join_that_is_missing() -> None:
    schedule, at = _with_join()
    records = np.delete(schedule.lists[0], at, axis=0)
    assert _problems(Schedule(schedule.graph, (records,), schedule.counters))[0] == Problem(
        "coverage", "join before use has no tiles and needs exactly one record, but has 0: add one."
    )


def test_join_that_is_there_twice() -> None:
    schedule, at = _with_join()
    records = np.insert(schedule.lists[0], at, schedule.lists[0][at], axis=0)
    assert _problems(Schedule(schedule.graph, (records,), schedule.counters))[0] == Problem(
        "coverage",
        "join before use has no tiles and needs exactly one record, but has 2: remove the others.",
        records=((0, at), (0, at + 1)),
    )


def test_join_in_words() -> None:
    schedule, at = _with_join()
    schedule.lists[0][at, OP] = 63
    assert _problems(schedule)[0].message.startswith(
        f"join before use without tiles (worker 0, record {at}) has an opcode that is not its"
    )


def test_record_that_no_planner_made() -> None:
    assert _problems(_schedule((1, 1, OP, 63))) == [
        Problem(
            "record",
            "use tile 1 (worker 1, record 1) has an opcode that is not its node's op; "
            "deal the schedule again instead of editing it.",
            records=((1, 1),),
        )
    ]


def test_list_of_another_shape() -> None:
    schedule = _schedule()
    lists = (schedule.lists[0].astype(np.int64), *schedule.lists[1:])
    (problem,) = _problems(Schedule(schedule.graph, lists, schedule.counters))
    assert problem.message == (
        "the list of worker 0 is int64 [2, 32], but a list is int32 [records, 32]: deal the "
        "schedule again."
    )


def test_more_workers_than_can_be_resident() -> None:
    assert verify(_schedule(), resident=3).workers == 3
    assert _problems(_schedule(), resident=2) == [
        Problem(
            "workers",
            "the schedule is dealt to 3 workers, but only 2 can run at the same time here, and the "
            "running ones could wait for ever for the others: deal it to at most 2 workers.",
        )
    ]


GRAPH_CASES: dict[str, tuple[Callable[[], Graph], Problem]] = {
    "outside": (
        lambda: _graph(use={"hi": 13}),
        Problem(
            "bounds",
            "use tile 0: its access read x[0:2, 0:13] leaves the logical shape [2, 12]: correct the"
            " box in op mix's access function or the node's arguments.",
            tensor="x",
            box=((0, 2), (0, 13)),
        ),
    ),
    "input": (
        lambda: _graph("input"),
        Problem(
            "access",
            "make: op mix declares the access write of 'dst', but x is of kind input, which no task"
            " may write: write to a scratch, state or output tensor.",
            tensor="x",
        ),
    ),
    "immutable": (
        lambda: _graph(use={"frozen": 1}),
        Problem(
            "immutable",
            "use tile 0 declares x[0:2, 0:12] immutable, but make tile 0 writes to it in the same "
            "step: declare a read, so that it waits for the writer.",
            tensor="x",
            box=X,
        ),
    ),
    "uninitialised": (
        lambda: _graph("output", make={"across": 2}),
        Problem(
            "uninitialised",
            "use tile 0 reads x[0:2, 0:12], but no earlier node writes all of it, and a tensor of "
            "kind output holds nothing before a step: add the node that writes it, or make it state"
            " if it must live from step to step.",
            tensor="x",
            box=X,
        ),
    ),
    "reader": (
        lambda: _graph(use={"dst": "x"}),
        Problem(
            "writer",
            "use tile 1 reads x[0:2, 0:12], to which tile 0 of the same node writes, and tiles of "
            "one node run in any order: write to another tensor, or read in a node of its own.",
            tensor="x",
            box=X,
        ),
    ),
    "writers": (
        lambda: _two_tiles(lambda tile: write("x", (0, 2), (tile, tile + 2))),
        Problem(
            "writer",
            "wide tiles 0 and 1 both write x[0:2, 1:3]: every element has one writer in a node; "
            "make the tiles' boxes disjoint.",
            tensor="x",
            box=((0, 2), (1, 3)),
        ),
    ),
    "writers of one box": (
        lambda: _two_tiles(lambda tile: write("x", (0, 2), (0, 12))),
        Problem(
            "writer",
            "wide tiles 0 and 1 both write x[0:2, 0:12]: every element has one writer in a node; "
            "make the tiles' boxes disjoint.",
            tensor="x",
            box=X,
        ),
    ),
    "dimensions": (
        lambda: _two_tiles(lambda tile: write("x", (0, 2))),
        Problem(
            "bounds",
            "wide: op wide declares the access write of 'x' in 1 dimensions, but x has the logical "
            "shape [2, 12]: give one range per dimension.",
            tensor="x",
        ),
    ),
    "length": (
        lambda: _two_tiles(lambda tile: write("x", (0, 2), (tile[:1], 12))),
        Problem(
            "bounds",
            "wide: op wide declares the access write of 'x' with bounds that are not one number for"
            " each of its 2 tiles: derive them from the tile numbers that the op's access function "
            "is given.",
            tensor="x",
        ),
    ),
    "argument": (
        lambda: _two_tiles(lambda tile: write("z", (0, 2), (0, 12))),
        Problem(
            "access",
            "wide: op wide declares the access write of 'z', which is not one of its tensor "
            "arguments.",
        ),
    ),
}


def _two_tiles(access: Callable[[np.ndarray], Access]) -> Graph:
    """One node of two tiles with any access."""
    args = (tensor("x", "f32", "written"),)
    op = Op("wide", "", args, lambda a: 2, lambda a, tile: [access(tile)], "", Path(__file__))
    g = Graph()
    g.tensor("x", "f32", (2, 12), "scratch")
    g.add(op, "wide", x="x")
    return g


def _undealt(graph: Graph) -> Schedule:
    """Faulty declarations are found without any record."""
    return Schedule(graph, (), 0)


@pytest.mark.parametrize("case", GRAPH_CASES)
def test_what_a_graph_alone_gets_wrong(case: str) -> None:
    graph, problem = GRAPH_CASES[case]
    assert problem in _problems(_undealt(graph()))


def test_two_tensors_under_one_name() -> None:
    graph = _graph()
    graph.tensors["z"] = replace(graph.tensors["x"])
    assert _problems(_undealt(graph))[0] == Problem(
        "table",
        "the tensor table holds 'x' under the name 'z' and under 'x': give every tensor one name "
        "of its own.",
        tensor="x",
    )
