"""A trace as a few lines of characters, for terminals: a line a worker, a letter an op."""

import numpy as np

from mkport.trace.trace import END, READY, START, Trace

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def sketch(trace: Trace, width: int = 72) -> str:
    """Lines of `width` characters: a letter where a task runs, `.` where one waits, blank where
    there is none; then what the letters mean, and the caption. Short tasks may hide others."""
    ops = sorted({op for _, op in trace.nodes})
    letter = {op: LETTERS[at % len(LETTERS)] for at, op in enumerate(ops)}
    scale = width / max(trace.span_ns, 1)
    lanes = np.full((trace.workers, width), " ")
    for worker, node, times in zip(trace.worker, trace.node, trace.times, strict=True):
        start, ready, end = (
            int((times[at] - trace.first_ns) * scale) for at in (START, READY, END)
        )
        lanes[worker, start:ready] = "."
        lanes[worker, ready : max(end, ready + 1)] = letter[trace.nodes[node][1]]
    lines = [f"worker {w:<3}|{''.join(lane)}|" for w, lane in enumerate(lanes)]
    lines.append(f"{trace.span_ns / 1000:,.1f} us; " + ", ".join(f"{letter[o]} {o}" for o in ops))
    return "\n".join([*lines, trace.caption])
