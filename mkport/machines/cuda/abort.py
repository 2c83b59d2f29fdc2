"""The error block of a step that was aborted, and what it says in words."""

import numpy as np

from mkport.compose.cuda_constants import COUNTER_STRIDE, ROLES, WAIT_KINDS, WRITTEN
from mkport.declare import RECORD
from mkport.plan import Schedule, signal_of
from mkport.plan.depend import awaits

NODE = RECORD["node"].first


def error_block(schedule: Schedule) -> tuple[int, int]:
    """The shape of an error block: a row for the abort flag, then one for each worker and role."""
    return 1 + schedule.workers * len(ROLES), COUNTER_STRIDE


def frontier(schedule: Schedule, errors: np.ndarray) -> str:
    """Who waits for what, have and need, in words, from an aborted step's error block: `errors`
    int32 in the shape of `error_block`.

    Waits for counters and for flagged words come first, in program order: the first of them is the
    cause of all others.
    """
    head = "The step was aborted: a wait ran past its limit. Where the workers were:"
    causes: list[tuple[int, str]] = []  # with the node that waits
    others: list[str] = []
    for row in range(1, len(errors)):
        kind, index, which, seen, wanted = (int(v) for v in errors[row, :5])
        worker, role = divmod(row - 1, len(ROLES))
        if not kind:
            continue
        place, number = schedule.describe(worker, index), int(schedule.lists[worker][index][NODE])
        if WAIT_KINDS[kind] == "counter":
            behind = int(np.int32(np.uint32(wanted & 0xFFFFFFFF) - np.uint32(seen & 0xFFFFFFFF)))
            text = (
                f"  {place} waits for counter {which} (signalled by "
                f"{_signaller(schedule, which)}): has {seen}, needs {wanted}, {behind} missing"
            )
            causes.append((number, text))
        elif WAIT_KINDS[kind] == WRITTEN:
            names = sorted(awaits(schedule.graph, schedule.graph.nodes[number]))
            causes += [
                (number, f"  {place} waits for words of {n}, which {_writer(schedule, n)} writes")
                for n in names
            ]
        else:
            others.append(f"  {place}: the {ROLES[role]} role waits for {WAIT_KINDS[kind]} {which}")
    told = [text for _, text in sorted(causes, key=lambda cause: cause[0])]
    return "\n".join([head, *told, *others])


def _writer(schedule: Schedule, name: str) -> str:
    """The node that writes a flagged tensor."""
    for node in schedule.graph.nodes:
        if any(a.mode == "write" and node.args[a.arg] == name for a in node.accesses):
            return node.label
    return "nobody"


def _signaller(schedule: Schedule, counter: int) -> str:
    for records in schedule.lists:
        for record in records:
            if signal_of(record)[0] == counter:
                return schedule.graph.nodes[int(record[RECORD["node"].first])].label
    return "nobody"
