"""Makes a `Trace` of a machine's last traced step. What is done with it is not known here."""

from typing import Protocol

import numpy as np

from mkport.declare import RECORD
from mkport.plan import Schedule
from mkport.trace.trace import Trace


class Stepped(Protocol):
    """A machine of any kind."""

    schedule: Schedule
    times: list[np.ndarray]  # of the last step, if it was traced: int64 [records, 3] a worker


def collect(machine: Stepped, caption: str) -> Trace:
    """The trace of the step that `machine.step(trace=True)` ran last.

    `caption` says how the times came about: "measured on ...". Raises ValueError when the last step
    was not traced.
    """
    if not machine.times:
        raise ValueError("the machine's last step was not traced: call step(trace=True)")
    schedule = machine.schedule
    lengths = [len(records) for records in schedule.lists]
    node = RECORD["node"].first
    return Trace(
        workers=schedule.workers,
        worker=np.repeat(np.arange(schedule.workers), lengths),
        record=np.concatenate([np.arange(length) for length in lengths]),
        node=np.concatenate([records[:, node] for records in schedule.lists]),
        times=np.concatenate(machine.times),
        nodes=tuple((n.label, n.op.name) for n in schedule.graph.nodes),
        caption=caption,
    )
