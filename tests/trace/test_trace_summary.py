"""The summary's numbers: a step added up by hand, and sums that must hold for any step."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from mkport.trace import NodeWait, OpTime, Trace, WorkerTime, render, summarise


def test_a_step_added_up_by_hand(tiny: Trace) -> None:
    # Worker 0: 400 busy, 100 no task, 100 waiting, 400 busy. Worker 1: 100 no task, 300 waiting,
    # 200 busy, 400 no task. So of 2 x 1000 ns: 1000 busy, 400 waiting, 600 idle.
    summary = summarise(tiny)
    assert (summary.span_ns, summary.tasks) == (1000, 3)
    shares = (summary.busy, summary.waiting, summary.idle)
    assert shares == pytest.approx((0.5, 0.2, 0.3))
    assert [(w.worker, w.tasks) for w in summary.workers] == [(0, 2), (1, 1)]
    assert _shares(summary.workers[0]) == pytest.approx((0.8, 0.1, 0.1))
    assert _shares(summary.workers[1]) == pytest.approx((0.2, 0.3, 0.5))
    assert summary.ops == (OpTime("gemm", 2, 800, 100), OpTime("attention", 1, 200, 300))
    assert summary.top_waits == (
        NodeWait("layer 0 / attn", "attention", 1, 300),
        NodeWait("layer 0 / o", "gemm", 1, 100),
    )


def test_the_sums_hold(step: Callable[..., Trace]) -> None:
    trace = step(7, 3)
    summary = summarise(trace)
    assert sum(one.tasks for one in summary.ops) == sum(one.tasks for one in summary.workers)
    assert sum(one.tasks for one in summary.ops) == trace.tasks
    total = trace.workers * trace.span_ns
    assert sum(one.busy_ns for one in summary.ops) == pytest.approx(summary.busy * total)
    assert sum(one.waiting_ns for one in summary.ops) == pytest.approx(summary.waiting * total)
    overall = (summary.busy, summary.waiting, summary.idle)
    for shares in (overall, *map(_shares, summary.workers)):
        assert sum(shares) == pytest.approx(1)
        assert min(shares) >= 0
    waits = [one.waiting_ns for one in summary.top_waits]
    assert waits == sorted(waits, reverse=True)
    by_node = np.zeros(len(trace.nodes), np.int64)
    np.add.at(by_node, trace.node, trace.times[:, 1] - trace.times[:, 0])
    assert waits == sorted(by_node.tolist(), reverse=True)[: len(waits)]


def test_nodes_of_one_label_and_op_are_one_row() -> None:
    trace = Trace(
        workers=1,
        worker=np.array([0, 0]),
        record=np.array([0, 1]),
        node=np.array([0, 1]),
        times=np.array([[0, 10, 20], [20, 50, 60]]),
        nodes=(("split", "attention"), ("split", "attention")),
        caption="simulated",
    )
    assert summarise(trace).top_waits == (NodeWait("split", "attention", 2, 40),)


def test_a_step_without_tasks_has_no_shares() -> None:
    none = np.zeros(0, np.int32)
    trace = Trace(2, none, none, none, np.zeros((0, 3), np.int64), (("a", "gemm"),), "nothing ran")
    summary = summarise(trace)
    assert (summary.span_ns, summary.busy, summary.waiting, summary.idle) == (0, 0, 0, 0)
    assert (summary.ops, summary.top_waits) == ((), ())
    assert "0 tasks on 2 workers" in render(summary)


def test_the_table_says_the_same_numbers(tiny: Trace) -> None:
    lines = render(summarise(tiny)).splitlines()
    assert lines[0] == "simulated, by hand"
    assert lines[1] == "3 tasks on 2 workers in 1.0 us: 50.0 % busy, 20.0 % waiting, 30.0 % idle"
    cells = [line.split() for line in lines]
    assert ["1", "1", "20.0", "%", "30.0", "%", "50.0", "%"] in cells
    assert ["attention", "1", "0.2", "us", "10.0", "%", "0.3", "us", "15.0", "%"] in cells
    assert ["layer", "0", "/", "attn", "attention", "1", "0.3", "us"] in cells


def test_many_workers_are_shown_by_their_extremes(step: Callable[..., Trace]) -> None:
    summary = summarise(step(40, 1))
    text = render(summary)
    least = min(summary.workers, key=lambda one: one.busy)
    most = max(summary.workers, key=lambda one: one.busy)
    assert f"{least.worker} (least busy)" in text
    assert f"{most.worker} (most busy)" in text
    assert len(text.splitlines()) < 30


def test_a_summary_is_ready_for_json(tiny: Trace) -> None:
    content = json.loads(json.dumps(summarise(tiny).as_dict()))
    assert content["ops"][1] == {
        "op": "attention",
        "tasks": 1,
        "busy_ns": 200,
        "waiting_ns": 300,
    }
    assert content["workers"][1]["waiting"] == pytest.approx(0.3)
    assert content["top_waits"][0]["label"] == "layer 0 / attn"


def _shares(one: WorkerTime) -> tuple[float, float, float]:
    return one.busy, one.waiting, one.idle
