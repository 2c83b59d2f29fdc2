"""A part of a trace as a trace of its own, small enough to be kept beside a page that shows it."""

from __future__ import annotations

import numpy as np

from mkport.errors import UserError
from mkport.trace.trace import END, START, Trace


def excerpt(trace: Trace, first_ns: int, last_ns: int, every: int = 1) -> Trace:
    """The tasks that run between two moments, in ns after the first task was picked up, of every
    `every`-th worker; what reaches over an end is cut off there. Times count from the first moment.

    Raises UserError for a window that is empty or outside the trace, and `every` below 1.
    """
    if every < 1 or not 0 <= first_ns < last_ns:
        raise UserError(
            f"There is no excerpt from {first_ns} to {last_ns} ns of every {every}-th worker: it "
            "begins at 0 ns or later, ends after it begins, and takes every worker or fewer."
        )
    since = trace.times - trace.first_ns
    kept = (since[:, START] < last_ns) & (since[:, END] > first_ns) & (trace.worker % every == 0)
    if not kept.any():
        raise UserError(
            f"No task of the trace runs between {first_ns} and {last_ns} ns: it is "
            f"{trace.span_ns} ns long."
        )
    used, node = np.unique(trace.node[kept], return_inverse=True)
    caption = f"{trace.caption}; {(last_ns - first_ns) / 1e3:,.0f} µs of {trace.span_ns / 1e3:,.0f}"
    if every > 1:
        caption += f", one worker in {every}"
    return Trace(
        workers=-(-trace.workers // every),
        worker=trace.worker[kept] // every,
        record=trace.record[kept],
        node=node.astype(np.int32),
        times=np.clip(since[kept], first_ns, last_ns) - first_ns,
        nodes=tuple(trace.nodes[n] for n in used),
        caption=caption,
    )
