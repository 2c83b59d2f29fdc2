"""A machine's recorded times become a trace: every record once, with its node and op."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mkport.declare import RECORD
from mkport.models import llama
from mkport.plan import deal
from mkport.testing import tiny
from mkport.trace.collect import collect


def _machine(times: bool) -> Any:
    """A schedule with made-up times: record r of a worker runs from 10 r to 10 r + 9."""
    schedule = deal(llama.build(tiny.LLAMA, tiny.SHAPE), 3)
    starts = [10 * np.arange(len(records), dtype=np.int64) for records in schedule.lists]
    made = [np.stack([s, s + 4, s + 9], axis=1) for s in starts]
    return SimpleNamespace(schedule=schedule, times=made if times else [])


def test_every_record_is_in_the_trace_once() -> None:
    machine = _machine(times=True)
    trace = collect(machine, "simulated")
    assert trace.caption == "simulated" and trace.workers == 3
    assert trace.tasks == sum(len(records) for records in machine.schedule.lists)
    for task in range(trace.tasks):
        worker, record = int(trace.worker[task]), int(trace.record[task])
        words = machine.schedule.lists[worker][record]
        node = machine.schedule.graph.nodes[int(words[RECORD["node"].first])]
        assert trace.nodes[trace.node[task]] == (node.label, node.op.name)
        assert trace.times[task].tolist() == [10 * record, 10 * record + 4, 10 * record + 9]
    places = set(zip(trace.worker.tolist(), trace.record.tolist(), strict=True))
    assert len(places) == trace.tasks


def test_a_step_that_was_not_traced_has_no_trace() -> None:
    with pytest.raises(ValueError, match="not traced"):
        collect(_machine(times=False), "simulated")
