"""Where the time of a step went: busy, waiting or idle, by worker, by op and by node.

Numbers and their text table only; pictures are in `timeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mkport.trace.trace import END, READY, START, Trace

TOP_WAITS = 8
LISTED_WORKERS = 16  # above this many, the table shows the extremes only


@dataclass(frozen=True)
class WorkerTime:
    """One worker's shares of the span; the three add up to 1."""

    worker: int
    tasks: int
    busy: float  # running bodies
    waiting: float  # a task picked up, its waits not over
    idle: float  # no task picked up


@dataclass(frozen=True)
class OpTime:
    """The tasks of one op, over all workers."""

    op: str
    tasks: int
    busy_ns: int
    waiting_ns: int  # spent waiting before tasks of this op


@dataclass(frozen=True)
class NodeWait:
    """The tasks that share one node label, over all workers."""

    label: str
    op: str
    tasks: int
    waiting_ns: int  # spent waiting before tasks of this node


@dataclass(frozen=True)
class Summary:
    """Where the workers' time went. Shares are of workers x span; without tasks all are 0."""

    caption: str
    span_ns: int
    tasks: int
    busy: float
    waiting: float
    idle: float
    workers: tuple[WorkerTime, ...]  # by number
    ops: tuple[OpTime, ...]  # the most busy first
    top_waits: tuple[NodeWait, ...]  # the longest wait first, at most TOP_WAITS, none of 0 ns

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts and lists under the field names, ready for JSON."""
        return asdict(self)


def summarise(trace: Trace) -> Summary:
    """Add up a trace's times by worker, by op and by node label."""
    busy_ns = trace.times[:, END] - trace.times[:, READY]  # [n]
    wait_ns = trace.times[:, READY] - trace.times[:, START]  # [n]
    tasks = np.bincount(trace.worker, minlength=trace.workers)  # [workers]
    busy = _shares(trace, busy_ns)
    waiting = _shares(trace, wait_ns)
    idle = 1.0 - busy - waiting if trace.span_ns else np.zeros(trace.workers)
    labels = sorted(set(trace.nodes))
    ops = sorted({op for _, op in trace.nodes})
    by_op = _totals(trace, [ops.index(op) for _, op in trace.nodes], len(ops), busy_ns, wait_ns)
    place = {node: at for at, node in enumerate(labels)}
    by_node = _totals(trace, [place[node] for node in trace.nodes], len(labels), busy_ns, wait_ns)
    op_times = [OpTime(op, *row) for op, row in zip(ops, by_op, strict=True) if row[0]]
    node_waits = [
        NodeWait(label, op, count, waited)
        for (label, op), (count, _, waited) in zip(labels, by_node, strict=True)
        if waited
    ]
    return Summary(
        caption=trace.caption,
        span_ns=trace.span_ns,
        tasks=trace.tasks,
        busy=float(busy.mean()),
        waiting=float(waiting.mean()),
        idle=float(idle.mean()),
        workers=tuple(
            WorkerTime(w, int(tasks[w]), float(busy[w]), float(waiting[w]), float(idle[w]))
            for w in range(trace.workers)
        ),
        ops=tuple(sorted(op_times, key=lambda one: (-one.busy_ns, one.op))),
        top_waits=tuple(
            sorted(node_waits, key=lambda one: (-one.waiting_ns, one.label))[:TOP_WAITS]
        ),
    )


def render(summary: Summary) -> str:
    """A text table of a summary, a dozen to forty lines, without a trailing newline."""
    count = len(summary.workers)
    overall = (
        f"{_plural(summary.tasks, 'task')} on {_plural(count, 'worker')} in "
        f"{_time(summary.span_ns)}: {_share(summary.busy)} busy, "
        f"{_share(summary.waiting)} waiting, {_share(summary.idle)} idle"
    )
    parts = [f"{summary.caption}\n{overall}", _workers_table(summary)]
    total = count * summary.span_ns
    if summary.ops:
        rows = [
            (
                one.op,
                f"{one.tasks:,}",
                _time(one.busy_ns),
                _share(one.busy_ns / total if total else 0.0),
                _time(one.waiting_ns),
                _share(one.waiting_ns / total if total else 0.0),
            )
            for one in summary.ops
        ]
        parts.append(_table(("op", "tasks", "busy", "share", "waiting before it", "share"), rows))
    if summary.top_waits:
        waits = [
            (one.label, one.op, f"{one.tasks:,}", _time(one.waiting_ns))
            for one in summary.top_waits
        ]
        parts.append(_table(("longest waits", "op", "tasks", "waiting"), waits, left=2))
    return "\n\n".join(parts)


def _shares(trace: Trace, ns: np.ndarray) -> np.ndarray:
    """Sum `ns` [n] by worker, as shares of the span: [workers]."""
    total = np.zeros(trace.workers, np.int64)
    np.add.at(total, trace.worker, ns)
    return total / trace.span_ns if trace.span_ns else np.zeros(trace.workers)


def _totals(
    trace: Trace, group_of_node: list[int], groups: int, busy_ns: np.ndarray, wait_ns: np.ndarray
) -> list[tuple[int, int, int]]:
    """Per group of nodes: (tasks, busy ns, waiting ns), added as integers."""
    group = np.asarray(group_of_node, np.int64)[trace.node]  # [n]
    sums = np.zeros((groups, 3), np.int64)
    np.add.at(sums, group, np.stack([np.ones_like(busy_ns), busy_ns, wait_ns], axis=1))
    return [(int(a), int(b), int(c)) for a, b, c in sums]


def _workers_table(summary: Summary) -> str:
    shown = [(str(one.worker), one) for one in summary.workers]
    if len(shown) > LISTED_WORKERS:
        ranked = sorted(summary.workers, key=lambda one: one.busy)
        picks = (("least busy", 0), ("median", len(ranked) // 2), ("most busy", -1))
        shown = [(f"{ranked[at].worker} ({name})", ranked[at]) for name, at in picks]
    rows = [
        (name, f"{one.tasks:,}", _share(one.busy), _share(one.waiting), _share(one.idle))
        for name, one in shown
    ]
    return _table(("worker", "tasks", "busy", "waiting", "idle"), rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], left: int = 1) -> str:
    """Align columns, the first `left` to the left and the others to the right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def _time(ns: int) -> str:
    """Always microseconds, so that a column can be compared."""
    return f"{ns / 1e3:,.1f} us"
