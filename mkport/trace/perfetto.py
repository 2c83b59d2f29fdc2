"""A trace as Chrome trace-event JSON, for ui.perfetto.dev and chrome://tracing.

Complete events (`ph` "X") have `ts` and `dur` in microseconds, and metadata events (`ph` "M") name
and order the threads. Viewers want the complete events of one thread to nest or to follow each
other, never to overlap, and some turn `ts` into whole nanoseconds by cutting the fraction off; the
numbers here survive both. Source: Google's "Trace Event Format".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkport.files import replace_file
from mkport.trace.trace import Trace

PID = 1  # one process; 0 is the idle process to the viewer, so ids start at 1


def write(trace: Trace, path: str | Path) -> None:
    """Write one thread per worker, and for each task its waiting (if any) and its running.

    Time 0 is when the first task was picked up. An event is named after its node; its arguments
    are node, op and record. The whole file appears at once, or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    lines = ",\n".join(
        json.dumps(event, ensure_ascii=False, separators=(",", ":")) for event in _events(trace)
    )
    other = json.dumps(
        {"caption": trace.caption, "workers": trace.workers, "tasks": trace.tasks},
        ensure_ascii=False,
    )
    text = f'{{"traceEvents":[\n{lines}\n],\n"otherData":{other}}}\n'
    replace_file(Path(path), lambda at: at.write_text(text, encoding="utf-8"))


def _events(trace: Trace) -> Iterator[dict[str, Any]]:
    yield _name("process_name", 0, name=f"mkport: {trace.caption}")
    for worker in range(trace.workers):
        yield _name("thread_name", worker, name=f"worker {worker}")
        yield _name("thread_sort_index", worker, sort_index=worker)
    rows = zip(
        trace.worker.tolist(),
        trace.record.tolist(),
        trace.node.tolist(),
        (trace.times - trace.first_ns).tolist(),
        strict=True,
    )
    for worker, record, node, (start, ready, end) in rows:
        label, op = trace.nodes[node]
        args = {"node": label, "op": op, "record": record}
        if ready > start:
            yield _complete("waiting", "waiting", worker, start, ready, args)
        yield _complete(label, op, worker, ready, end, args)


def _name(what: str, worker: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": PID, "tid": worker + 1, "args": args}


def _complete(
    name: str, category: str, worker: int, first_ns: int, last_ns: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": PID,
        "tid": worker + 1,
        "ts": _microseconds(first_ns),
        "dur": _microseconds(last_ns - first_ns),
        "args": args,
    }


def _microseconds(ns: int) -> int | float:
    """The smallest double at or just above ns / 1000 whose thousandfold, cut off, is ns again."""
    if ns % 1000 == 0:
        return ns // 1000
    value = ns / 1000
    while int(value * 1000) < ns:
        value = math.nextafter(value, math.inf)
    return value
