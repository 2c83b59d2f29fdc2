"""From ops to a schedule: the step graph, derived dependencies, records dealt to workers."""

from mkport.plan.deal import deal
from mkport.plan.depend import plan
from mkport.plan.flagged import flag, flagged_for, is_flagged
from mkport.plan.graph import Graph, Node
from mkport.plan.schedule import Schedule, run_of, signal_of, waits_of

__all__ = [
    "Graph",
    "Node",
    "Schedule",
    "deal",
    "flag",
    "flagged_for",
    "is_flagged",
    "plan",
    "run_of",
    "signal_of",
    "waits_of",
]
