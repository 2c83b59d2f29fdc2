"""How many bytes of memory a step reads: the sum of what its tasks declare as immutable.

Inputs and activations are left out: they are small and stay in the caches. What is read again (a
norm's weight by every token) counts once a node.
"""

from collections.abc import Callable

import numpy as np

from mkport.declare import Access
from mkport.declare.table import DTYPE_BYTES
from mkport.plan.graph import Graph, Node

Used = Callable[[Node], float]  # the share of a node's data-dependent picks that read something


def node_bytes(graph: Graph, rows: int, context: int, used: Used = lambda node: 1.0) -> list[float]:
    """Bytes that each node of a step reads, [nodes] in program order.

    The step holds `rows` tokens, each in a sequence of `context` positions of its own, at the last
    one. Where only so many entries of a tensor are picked, and data says which (`Access.picks`),
    every pick counts as another entry, but no more than all tokens together can choose; times
    `used(node)`.
    """
    return [
        sum(_access_bytes(graph, node, access, rows, context, used) for access in node.accesses)
        for node in graph.nodes
    ]


def step_bytes(graph: Graph, rows: int, context: int, used: Used = lambda node: 1.0) -> float:
    """Bytes that a whole step reads; arguments as in `node_bytes`: `context` is in positions.

    Divided by the bandwidth of the memory this is the least time of a step. Source: the roofline
    model of Williams, Waterman and Patterson, CACM 52(4), 2009.
    """
    return sum(node_bytes(graph, rows, context, used))


def distinct(entries: int, picks: int, draws: int) -> float:
    """How many of `entries` are expected in at least one of `draws` independent, uniform choices of
    `picks` different entries each: one is missed by all with (1 - picks / entries)^draws."""
    return entries * (1.0 - (1.0 - picks / entries) ** draws)


def _access_bytes(
    graph: Graph, node: Node, access: Access, rows: int, context: int, used: Used
) -> float:
    name = node.args[access.arg]
    if access.mode != "immutable" or name is None or not node.tiles:
        return 0.0
    spec = graph.tensors[name]
    if spec.kind not in ("weight", "state"):
        return 0.0
    item = DTYPE_BYTES[spec.dtype]
    its = boxes(access, node.tiles)
    if spec.kind == "state":
        # logically [row, past or now, column]: a row's past is as long as its sequence or window
        columns = np.diff(np.unique(its[:, 2], axis=0)).sum()
        keys = min(context, node.args.get("window") or context)
        return float(rows * keys * columns * item)
    if access.picks is None:
        sizes = np.diff(np.unique(its, axis=0))[..., 0]
        return float(sizes.prod(axis=1).sum() * item)
    parts, tiles = np.unique(its[:, 1:], axis=0, return_counts=True)
    limit = _entries(node, spec.shape[0], rows)
    entries = np.minimum(tiles * access.picks, limit)
    sizes = np.diff(parts)[..., 0].prod(axis=1)  # elements of one entry's part
    return float((entries * sizes).sum() * item * used(node))


def _entries(node: Node, entries: int, rows: int) -> int:
    """Of a tensor's `entries` those that a node may pick: by tokens, or by slots of its own, of
    which the first of all are used."""
    if "slot_count" not in node.args:
        return min(entries, rows)
    first = node.args.get("first_slot", 0)
    return max(0, min(entries - first, node.args["slot_count"]))


def boxes(access: Access, tiles: int) -> np.ndarray:
    """The bounds of an access, a box a tile: int64 [tiles, dimensions, 2]."""
    boxes = np.empty((tiles, len(access.box), 2), np.int64)
    for d, (lo, hi) in enumerate(access.box):
        boxes[:, d, 0], boxes[:, d, 1] = lo, hi
    return boxes
