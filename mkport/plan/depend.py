"""Derives which nodes must wait for which, from what their tiles read and write.

A node depends on the latest earlier nodes that wrote what it reads (read after write), that read
what it writes (write after read) and that wrote what it writes (write after write). Nobody counts
arrivals by hand: counters and targets follow from this list. Flagged tensors are left out: a word
of theirs is written once, and whoever reads it awaits it by itself.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mkport.declare import Access, Bound, Op
from mkport.declare.record import MAX_WAITS
from mkport.plan.graph import Graph, Node

Box = tuple[tuple[int, int], ...]

JOIN = Op(
    name="join",
    doc="No tiles: waits for up to four nodes and signals once, where a node waits for more.",
    args=(),
    tiles=lambda a: 0,
    access=lambda a, tile: (),
    order="none",
    folder=Path(__file__).parent,
)


@dataclass(frozen=True)
class Planned:
    """The graph, with joins where a node waits for more than four others, and its dependencies.

    `waits[n]` lists the nodes that node n waits for, transitively reduced, at most four;
    `awaits[n]` those whose flagged words it awaits.
    """

    graph: Graph
    waits: tuple[tuple[int, ...], ...]
    awaits: tuple[tuple[int, ...], ...]


def plan(graph: Graph) -> Planned:
    """Derives the dependencies of every node and inserts joins."""
    planned = Graph(graph.ops)
    planned.tensors = graph.tensors
    place: dict[int, int] = {}  # node of `graph` -> node of `planned`
    waits: list[tuple[int, ...]] = []
    awaited: list[tuple[int, ...]] = []
    writers: dict[str, int] = {}  # of flagged tensors: the planned node
    ancestors: list[int] = []  # a bit set of planned nodes for each planned node

    def append(node: Node, needs: list[int]) -> int:
        planned.nodes.append(node)
        waits.append(tuple(needs))
        awaited.append(tuple(sorted({writers[n] for n in awaits(graph, node) if n in writers})))
        for access in node.accesses:
            name = node.args[access.arg]
            if access.mode == "write" and name and graph.tensors[name].kind == "flagged":
                writers[name] = len(waits) - 1
        ancestors.append(_union(ancestors, needs))
        return len(planned.nodes) - 1

    for number, needs in enumerate(_conflicts(graph)):
        after = _reduce([place[n] for n in needs], ancestors)
        while len(after) > MAX_WAITS:
            join = Node(JOIN, f"join before {graph.nodes[number].label}", {}, Bound())
            after = [*after[MAX_WAITS:], append(join, after[:MAX_WAITS])]
        place[number] = append(graph.nodes[number], after)
    return Planned(planned, tuple(waits), tuple(awaited))


def _union(ancestors: list[int], needs: list[int]) -> int:
    seen = 0
    for n in needs:
        seen |= ancestors[n] | 1 << n
    return seen


def _reduce(needs: list[int], ancestors: list[int]) -> list[int]:
    """Drops what is implied by another dependency; latest first."""
    kept: list[int] = []
    covered = 0
    for n in sorted(set(needs), reverse=True):
        if not covered >> n & 1:
            kept.append(n)
            covered |= ancestors[n] | 1 << n
    return kept


def _conflicts(graph: Graph) -> list[list[int]]:
    """For each node the earlier nodes it conflicts with, less those hidden by later writers."""
    writers: dict[str, list[tuple[int, Box]]] = {name: [] for name in graph.tensors}
    readers: dict[str, list[tuple[int, Box]]] = {name: [] for name in graph.tensors}
    result: list[list[int]] = []
    for number, node in enumerate(graph.nodes):
        needs: set[int] = set()
        awaited = {(name, "read") for name in awaits(graph, node)}
        touched = [
            (node.args[a.arg], a.mode, box)
            for a in node.accesses
            if node.args[a.arg] is not None and (box := hull(a)) is not None
        ]
        for name, mode, box in touched:
            if mode != "immutable" and (name, mode) not in awaited:
                needs |= {n for n, other in writers[name] if _overlap(box, other)}
            if mode in ("write", "update"):
                needs |= {n for n, other in readers[name] if _overlap(box, other)}
        for name, mode, box in touched:
            if mode in ("write", "update"):
                writers[name] = [(n, b) for n, b in writers[name] if not inside(b, box)]
                readers[name] = [(n, b) for n, b in readers[name] if not inside(b, box)]
        for name, mode, box in touched:
            if mode in ("write", "update"):
                writers[name].append((number, box))
            if mode in ("read", "update"):
                readers[name].append((number, box))
        result.append(sorted(needs - {number}))
    return result


def awaits(graph: Graph, node: Node) -> set[str]:
    """The flagged tensors that a node reads: its tiles await their words, and nobody else's end."""
    names = {node.args[arg] for arg in node.op.awaits}
    return {name for name in names if name is not None and graph.tensors[name].kind == "flagged"}


def hull(access: Access) -> Box | None:
    """The smallest box around an access of all tiles; None when it is empty."""
    if any(np.size(lo) == 0 or np.size(hi) == 0 for lo, hi in access.box):
        return None
    return tuple((int(np.min(lo)), int(np.max(hi))) for lo, hi in access.box)


def _overlap(a: Box, b: Box) -> bool:
    return all(
        lo < other_hi and other_lo < hi for (lo, hi), (other_lo, other_hi) in zip(a, b, strict=True)
    )


def inside(inner: Box, outer: Box) -> bool:
    """Whether all of one box lies in another."""
    return all(
        o_lo <= lo and hi <= o_hi for (lo, hi), (o_lo, o_hi) in zip(inner, outer, strict=True)
    )
