"""What happened in a step: recorded times, their summary, a picture, and a file for Perfetto.

A machine fills a `Trace`; everything here only reads it. Nothing in this package runs a task,
and only `draw` and `figure` need matplotlib, which they import when they are called.
"""

from mkport.trace.perfetto import write
from mkport.trace.summary import NodeWait, OpTime, Summary, WorkerTime, render, summarise
from mkport.trace.timeline import draw, figure
from mkport.trace.trace import Trace

__all__ = [
    "NodeWait",
    "OpTime",
    "Summary",
    "Trace",
    "WorkerTime",
    "draw",
    "figure",
    "render",
    "summarise",
    "write",
]
