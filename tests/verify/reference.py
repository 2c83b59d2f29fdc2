"""The rules of a safe schedule once more, written from their definition: slow, and with sets.

It shares nothing with the verifier but the record's layout and the op declarations: every tensor
element is an element of a set, every pair of tiles is compared with every other, and happens-before
is the set of all ancestors.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from mkport.declare import RECORD
from mkport.plan import Graph, Schedule

Element = tuple


@dataclass
class TileSets:
    """What one tile touches, element by element."""

    node: int
    tile: int
    reads: set[Element]
    writes: set[Element]
    immutable: set[Element]


class Facts:
    """What a graph alone decides: whether it is sound, and which tiles meet in a write."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sound = True
        self.tiles = [
            self._sets(number, tile)
            for number, node in enumerate(graph.nodes)
            for tile in range(node.tiles)
        ]
        accesses = [
            (n, node, a.mode, a.arg, node.args[a.arg])
            for n, node in enumerate(graph.nodes)
            for a in (node.accesses if node.tiles else ())
            if node.args[a.arg] is not None and graph.tensors[node.args[a.arg]].kind == "flagged"
        ]
        self.flagged = {name for *_, name in accesses}
        for flagged in self.flagged:
            its = [(n, node, mode, arg) for n, node, mode, arg, name in accesses if name == flagged]
            others = [(n, mode) for n, _, mode, _ in its if mode != "read"]
            if len(others) != 1 or others[0][1] != "write":
                self.sound = False
            for n, node, mode, arg in its:
                if mode == "read" and (
                    arg not in node.op.awaits or not others or n <= others[0][0]
                ):
                    self.sound = False
                    break
        self.conflicts: list[tuple[TileSets, TileSets]] = []
        for one, two in product(self.tiles, self.tiles):
            if one is two or (one.node, one.tile) > (two.node, two.tile):
                continue
            if one.writes & (two.reads | two.writes) or two.writes & one.reads:
                if one.node == two.node:
                    self.sound = False
                meet = one.writes & (two.reads | two.writes) | two.writes & one.reads
                if all(name in self.flagged for name, *_ in meet):
                    continue  # whoever reads them awaits them
                self.conflicts.append((one, two))
        written = {e for t in self.tiles for e in t.writes}
        for t in self.tiles:
            before = {e for o in self.tiles if o.node < t.node for e in o.writes}
            read = t.reads | t.immutable
            owed = {e for e in read if graph.tensors[e[0]].kind in ("scratch", "flagged", "output")}
            if owed - before or t.immutable & written:
                self.sound = False
            if any(graph.tensors[e[0]].kind in ("weight", "input") for e in t.writes):
                self.sound = False

    def _sets(self, number: int, tile: int) -> TileSets:
        node = self.graph.nodes[number]
        sets = TileSets(number, tile, set(), set(), set())
        for access in node.op.access(node.bound, np.array([tile])):
            name = node.args[access.arg]
            if name is None:
                continue
            box = [(int(np.max(lo)), int(np.max(hi))) for lo, hi in access.box]
            shape = self.graph.tensors[name].logical
            if any(lo < 0 or hi > size for (lo, hi), size in zip(box, shape, strict=True)):
                self.sound = False
            elements = {(name, *at) for at in product(*(range(lo, hi) for lo, hi in box))}
            if access.mode in ("read", "update"):
                sets.reads |= elements
            if access.mode in ("write", "update"):
                sets.writes |= elements
            if access.mode == "immutable":
                sets.immutable |= elements
        return sets


@dataclass
class Row:
    """A record taken apart."""

    op: int
    node: int
    waits: list[tuple[int, int]]
    signal: tuple[int, int]
    run: tuple[int, int, int]
    args: list[int]

    @property
    def tiles(self) -> list[int]:
        first, stride, count = self.run
        return [first + i * stride for i in range(count)]


def _row(words: list[int]) -> Row:
    def part(name: str) -> list[int]:
        return words[RECORD[name].first : RECORD[name].end]

    w = part("waits")
    return Row(
        part("op")[0],
        part("node")[0],
        list(zip(w[::2], w[1::2], strict=True)),
        (part("signal")[0], part("signal")[1]),
        (part("run")[0], part("run")[1], part("run")[2]),
        part("args"),
    )


def is_safe(schedule: Schedule, facts: Facts, resident: int | None = None) -> bool:
    """Whether a schedule obeys every rule."""
    lists = [[_row([int(v) for v in words]) for words in records] for records in schedule.lists]
    return (
        facts.sound
        and (resident is None or len(lists) <= resident)
        and all(_well_formed(r, facts.graph, schedule.counters) for rows in lists for r in rows)
        and _covered(lists, facts.graph)
        and _balanced(lists)
        and _ordered(lists, facts)
    )


def _well_formed(r: Row, graph: Graph, counters: int) -> bool:
    if not 0 <= r.node < len(graph.nodes):
        return False
    node = graph.nodes[r.node]
    args = node.op.encode(node.args, graph.tensor_ids())
    first, stride, count = r.run
    if first < 0 or stride < 1 or count < 0 or any(tile >= node.tiles for tile in r.tiles):
        return False
    ended = False
    for counter, target in r.waits:
        if counter == -1:
            ended = True
        elif ended or not 0 <= counter < counters or target < 1:
            return False
    counter, amount = r.signal
    return (
        r.op == graph.ops.index(node.op)
        and r.args == args + [0] * (len(r.args) - len(args))
        and (counter == -1 or (0 <= counter < counters and amount >= 1))
    )


def _covered(lists: list[list[Row]], graph: Graph) -> bool:
    ran = sorted((r.node, tile) for rows in lists for r in rows for tile in r.tiles)
    want = [(n, tile) for n, node in enumerate(graph.nodes) for tile in range(node.tiles)]
    joins = [r.node for rows in lists for r in rows if not graph.nodes[r.node].tiles]
    return ran == want and sorted(joins) == [n for n, d in enumerate(graph.nodes) if not d.tiles]


def _balanced(lists: list[list[Row]]) -> bool:
    total: dict[int, int] = {}
    for rows in lists:
        for r in rows:
            if r.signal[0] >= 0:
                total[r.signal[0]] = total.get(r.signal[0], 0) + r.signal[1]
    return all(value < 2**31 for value in total.values()) and all(
        target == total.get(counter, 0)
        for rows in lists
        for r in rows
        for counter, target in r.waits
        if counter >= 0
    )


def _ordered(lists: list[list[Row]], facts: Facts) -> bool:
    places = [(w, i) for w, rows in enumerate(lists) for i in range(len(rows))]
    parents: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for w, i in places:
        counters = {counter for counter, _ in lists[w][i].waits if counter >= 0}
        parents[w, i] = {(v, j) for v, j in places if lists[v][j].signal[0] in counters}
        if i:
            parents[w, i].add((w, i - 1))
    before: dict[tuple[int, int], set[tuple[int, int]]] = {}
    while len(before) < len(places):
        ready = [p for p in places if p not in before and parents[p] <= before.keys()]
        if not ready:
            return False  # a circle
        for p in ready:
            before[p] = parents[p].union(*(before[q] for q in parents[p]))
    if facts.flagged:  # the earliest record that has not ended must be able to go on
        for w, i in places:
            row = lists[w][i]
            counters = {counter for counter, _ in row.waits if counter >= 0}
            ahead = {r.node for rows in lists for r in rows if r.signal[0] in counters}
            if any(n >= row.node for n in ahead) or (i and lists[w][i - 1].node > row.node):
                return False
    runner = {(lists[w][i].node, tile): (w, i) for w, i in places for tile in lists[w][i].tiles}
    return all(
        runner[one.node, one.tile] in before[runner[two.node, two.tile]]
        for one, two in facts.conflicts
        if one.node != two.node
    )
