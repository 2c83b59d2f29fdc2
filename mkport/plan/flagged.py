"""Scratch that tells by itself what is written: readers need no counter, writers no signal.

A counter costs a reader three trips to memory behind the last store: the writer's fence, the
counter and the data. Where each word is written once in a step, the data alone can say it: before
the step every word is one that no arithmetic gives, and a reader looks again until it is another.
So each use of a scratch tensor, from one write to the next, becomes a tensor of its own, and is
flagged if all who read it await its words. Source: the low-latency protocol of NCCL, which sends a
flag beside the data for the same reason.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mkport.declare import TensorSpec
from mkport.declare.table import DTYPE_BYTES
from mkport.plan.bytes import boxes
from mkport.plan.depend import Box, hull, inside
from mkport.plan.graph import Graph, Node

ROWS = 2  # of steps for which this pays: memory limits larger ones, not waiting
FLAGGED_BYTES = 1 << 20  # of a tensor, of which each layer then has its own
OWN_BYTES = 1 << 16  # of one that nobody awaits, so that no writer waits for earlier readers


@dataclass
class _Use:
    """A scratch tensor from one write to the next."""

    box: Box  # that is written
    count: str | None = None  # of the rows of it that are, if the writer has one
    awaited: bool = True  # by all who read it
    args: list[tuple[int, str]] = field(default_factory=list)  # the (node, argument) that name it


def flagged_for(graph: Graph, rows: int) -> Graph:
    """The graph as a GPU runs it in steps of so many token rows: with flagged scratch up to `ROWS`,
    else as it is."""
    return flag(graph) if rows <= ROWS else graph


def flag(graph: Graph) -> Graph:
    """The graph with flagged scratch, for the CUDA machine. Program order, nodes and what they
    compute stay as they are."""
    names: dict[tuple[int, str], str] = {}  # of each node's argument
    specs: dict[str, list[TensorSpec]] = {}  # in place of a tensor
    for name, uses in _uses(graph).items():
        specs[name] = []
        for number, use in enumerate(uses):
            spec = _own(graph.tensors[name], number, use)
            if spec.name not in {known.name for known in specs[name]}:
                specs[name].append(spec)
            names |= dict.fromkeys(use.args, spec.name)
    made = Graph(graph.ops)
    for name, spec in graph.tensors.items():
        for own in specs.get(name, [spec]):
            made.tensor(own.name, own.dtype, own.shape, own.kind, own.logical)
    for number, node in enumerate(graph.nodes):
        made.add(node.op, node.label, **_renamed(node, number, names))
    return made


def is_flagged(graph: Graph) -> bool:
    """Whether any of the graph's tensors is flagged."""
    return any(spec.kind == "flagged" for spec in graph.tensors.values())


def _own(spec: TensorSpec, number: int, use: _Use) -> TensorSpec:
    """The tensor of the use of that number: flagged, or its own, or the one of all others."""
    size, name = spec.nbytes, f"{spec.name}.{number}"
    if use.awaited and size <= FLAGGED_BYTES and spec.dtype in ("f32", "i32"):
        return TensorSpec(name, spec.dtype, spec.shape, "flagged", spec.logical)
    if size <= OWN_BYTES and DTYPE_BYTES[spec.dtype] == 4:
        return TensorSpec(name, spec.dtype, spec.shape, "scratch", spec.logical)
    return spec


def _renamed(node: Node, number: int, names: dict[tuple[int, str], str]) -> dict[str, Any]:
    """A node's arguments. What it updates it reads from one tensor and writes to another, if these
    are two now."""
    args = {arg: names.get((number, arg), value) for arg, value in node.args.items()}
    for arg, other in node.op.elsewhere:
        if node.args[other] is None and args[other] == args[arg]:
            args[other] = None
    return args


def _uses(graph: Graph) -> dict[str, list[_Use]]:
    """The uses of each scratch tensor that is written whole before it is read, by one node each."""
    uses: dict[str, list[_Use]] = defaultdict(list)
    unfit: set[str] = set()
    for number, node in enumerate(graph.nodes):
        touches = [t for t in _touches(node) if graph.tensors[t.name].kind == "scratch"]
        unfit |= {t.name for t in touches if t.apart or t.mode not in ("read", "write")}
        for t in touches:
            if t.mode == "read" and (not uses[t.name] or not inside(t.box, uses[t.name][-1].box)):
                unfit.add(t.name)
            elif t.mode == "read":
                counts = uses[t.name][-1].count, node.args.get("count")
                alike = None in counts or counts[0] == counts[1]  # else rows may never be written
                uses[t.name][-1].awaited &= t.arg in node.op.awaits and alike
                uses[t.name][-1].args.append((number, t.arg))
        for name in dict.fromkeys(t.name for t in touches if t.mode == "write"):
            its = [t for t in touches if t.name == name and t.mode == "write"]
            box = tuple(
                (min(lo for lo, _ in edges), max(hi for _, hi in edges))
                for edges in zip(*(t.box for t in its), strict=True)
            )
            if sum(t.size for t in its) != _volume(np.array(box)[None]):
                unfit.add(name)  # not all of the box
            args = sorted({(number, t.arg) for t in its})
            uses[name].append(_Use(box, node.args.get("count"), args=args))
        idle = {node.args[arg.name] for arg in node.op.tensors} - {t.name for t in _touches(node)}
        unfit |= {name for name in idle if name is not None}
    return {name: its for name, its in uses.items() if name not in unfit}


@dataclass(frozen=True)
class _Touch:
    """An access of all tiles of a node that is not empty."""

    arg: str
    name: str  # of the tensor
    mode: str
    box: Box  # around it
    size: int  # elements of all tiles' boxes
    apart: bool


def _touches(node: Node) -> Iterator[_Touch]:
    """What a node touches; of what it may leave elsewhere, a read and a write."""
    elsewhere = {arg: to for arg, to in node.op.elsewhere if node.args[to] is None}
    for access in node.accesses:
        name, box = node.args[access.arg], hull(access)
        if name is None or box is None:
            continue
        size = _volume(boxes(access, node.tiles))
        if access.mode == "update" and access.arg in elsewhere:
            yield _Touch(access.arg, name, "read", box, size, access.apart)
            yield _Touch(elsewhere[access.arg], name, "write", box, size, access.apart)
        else:
            yield _Touch(access.arg, name, access.mode, box, size, access.apart)


def _volume(box: np.ndarray) -> int:
    """Elements of boxes, int64 [boxes, dimensions, 2]."""
    return int((box[..., 1] - box[..., 0]).prod(axis=1).sum())
