"""The part of a trace that a picture shows: its tasks cut to a window, in microseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mkport.errors import UserError
from mkport.trace.palette import WAITING, op_colours
from mkport.trace.trace import END, READY, START, Trace

WAITING_NAME = "waiting"


@dataclass(frozen=True)
class Span:
    """Stretches of time of one colour: waiting, or the running of one op."""

    name: str
    colour: str
    worker: NDArray[np.int32]  # [k] a worker's stretches ascend and never overlap
    begin: NDArray[np.float64]  # [k] us
    end: NDArray[np.float64]  # [k] us, after begin

    @property
    def total(self) -> float:
        """Worker time in us."""
        return float((self.end - self.begin).sum())


@dataclass(frozen=True)
class Window:
    """What a picture shows; times in us after the first task of the whole trace was picked up."""

    workers: int
    tasks: int  # that reach into the window
    first: float
    last: float
    spans: tuple[Span, ...]  # the ops seen, by name, then waiting

    def share(self, span: Span) -> float:
        """A span's part of workers x window."""
        return span.total / (self.workers * (self.last - self.first))


def cut(trace: Trace, first_ns: int | None, last_ns: int | None) -> Window:
    """Cut a trace to a window given in ns after its first task was picked up.

    Without `first_ns` the window begins with the trace, without `last_ns` it ends with it. A
    trace that lasts no time gets a window of 1 us. Colours depend on the op names in
    `trace.nodes` alone, so that all windows of a trace agree.

    Raises:
        UserError: the window begins before the trace or does not end after it begins.
    """
    first = 0 if first_ns is None else first_ns
    last = trace.span_ns if last_ns is None else last_ns
    if first_ns is None and last_ns is None:
        last = last or 1000
    if not 0 <= first < last:
        raise UserError(
            f"Cannot draw a timeline from {first} to {last} ns: the window must begin at 0 ns or "
            f"later and end after it begins; this trace is {trace.span_ns} ns long."
        )
    since = trace.times - trace.first_ns
    shown = (since[:, START] < last) & (since[:, END] > first)
    times = np.clip(since[shown], first, last) / 1e3
    worker = trace.worker[shown]
    ops = np.array([op for _, op in trace.nodes] or [""])[trace.node[shown]]

    def span(name: str, colour: str, begin: int, end: int, chosen: NDArray[np.bool_]) -> Span:
        chosen = chosen & (times[:, end] > times[:, begin])
        return Span(name, colour, worker[chosen], times[chosen, begin], times[chosen, end])

    spans = [
        span(op, colour, READY, END, ops == op)
        for op, colour in op_colours(op for _, op in trace.nodes).items()
    ]
    spans = [one for one in spans if len(one.worker)]
    spans.append(span(WAITING_NAME, WAITING, START, READY, np.ones(len(worker), bool)))
    return Window(trace.workers, int(shown.sum()), first / 1e3, last / 1e3, tuple(spans))
