"""Checks flagged tensors, whose readers wait for no record but for the words themselves.

Such a word is sound when one node writes it, once, and when whoever reads it comes later in
program order, awaits it, and goes as far as the same count of rows. That nobody waits for ever then
follows from the lists: while each is in program order, and waits only for earlier nodes, the
earliest record that has not ended can always go on.
"""

import numpy as np

from mkport.declare.table import DTYPE_BYTES
from mkport.verify.footprint import APART, BOX, MODE, NODE, READ, VARIES, WRITE, Footprint
from mkport.verify.records import Records
from mkport.verify.report import MAX_PROBLEMS, Problem


def flagged_problems(foot: Footprint) -> list[Problem]:
    """Flagged tensors of which a word is written twice, or read without being awaited, or read as
    far as another count of rows than it is written."""
    problems: list[Problem] = []
    nodes = foot.graph.nodes
    for t in np.flatnonzero(flagged(foot)):
        name = foot.tensors[t]
        rows = foot.rows[foot.first[t] : foot.first[t + 1]]
        writers = np.unique(rows[rows[:, MODE] != READ, NODE])
        labels = [nodes[n].label for n in writers]
        if DTYPE_BYTES[foot.graph.tensors[name].dtype] != 4:
            problems.append(
                Problem(
                    "flagged",
                    f"{name} is flagged, but only words of 4 bytes tell that they are written, and "
                    f"it holds {foot.graph.tensors[name].dtype}: make it scratch.",
                    tensor=name,
                )
            )
        if len(writers) != 1 or (rows[:, MODE] > WRITE).any():
            problems.append(
                Problem(
                    "flagged",
                    f"{name} is flagged, so one node may write it, once, but it is written by "
                    f"{', '.join(labels) or 'nobody'}, or updated: make it scratch.",
                    tensor=name,
                )
            )
            continue
        writer = nodes[writers[0]]
        if _again(foot, rows[rows[:, MODE] == WRITE]):
            problems.append(
                Problem(
                    "flagged",
                    f"{writer.label} writes words of {name} twice, or where its data says, but it "
                    "is flagged, so each word must be written once: make it scratch.",
                    tensor=name,
                )
            )
        for row in rows[rows[:, MODE] == READ]:
            node = nodes[row[NODE]]
            deaf = [
                arg.name
                for arg in node.op.tensors
                if node.args[arg.name] == name and arg.name not in node.op.awaits
            ]
            early = row[NODE] <= writers[0]
            counts = [n.args.get("count") for n in (writer, node)]
            if deaf or early or (None not in counts and counts[0] != counts[1]):
                what = f"counts rows by {counts[1]}, its writer by {counts[0]}"
                if deaf or early:
                    what = "comes before its writer" if early else f"does not await its {deaf[0]}"
                problems.append(
                    Problem(
                        "flagged",
                        f"{node.label} reads {name}, which is flagged, but {what}: make the tensor "
                        "scratch.",
                        tensor=name,
                    )
                )
    return problems[:MAX_PROBLEMS]


def _again(foot: Footprint, rows: np.ndarray) -> bool:
    """Whether a tile's boxes meet in two of a node's writes, int64 [writes, 5], or are apart: which
    of their words it writes is data."""
    boxes = []
    for row in rows:
        tiles = np.arange(foot.tiles[row[NODE]]) if row[VARIES] else 0
        boxes.append(foot.boxes[row[BOX] + tiles].reshape(-1, foot.boxes.shape[1]))
    return bool((rows[:, APART] == 1).any()) or any(
        ((one[:, ::2] < two[:, 1::2]) & (two[:, ::2] < one[:, 1::2])).all(axis=1).any()
        for place, one in enumerate(boxes)
        for two in boxes[:place]
    )


def order_problems(records: Records, foot: Footprint) -> list[Problem]:
    """Where there are flagged tensors: lists out of program order, waits for later nodes."""
    if not flagged(foot).any():
        return []
    node, signal = records.node, records.signal[:, 0]
    back = np.zeros(len(records), np.bool_)
    back[1:] = (node[1:] < node[:-1]) & (records.worker[1:] == records.worker[:-1])
    last = np.full(max(records.schedule.counters, 1), -1)  # node that signals a counter
    np.maximum.at(last, signal[signal >= 0], node[signal >= 0])
    waits = records.waits[:, :, 0]
    back |= ((waits >= 0) & (last[waits] >= node[:, None])).any(axis=1)
    return [
        Problem(
            "order",
            f"{records.describe(int(r))} runs behind a later node, or waits for one, and another "
            "record may await what it writes: deal the schedule again instead of editing it.",
            records=(records.place(int(r)),),
        )
        for r in np.flatnonzero(back)[:MAX_PROBLEMS]
    ]


def flagged(foot: Footprint) -> np.ndarray:
    """Which of the footprint's tensors are flagged: bool [tensors]."""
    return np.array([foot.graph.tensors[name].kind == "flagged" for name in foot.tensors], np.bool_)
