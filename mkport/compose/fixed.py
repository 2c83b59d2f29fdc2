"""Programs for one graph alone. Arguments that all nodes of an op share are constants there: bodies
are the same text, and the compiler leaves out what such a graph never does."""

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from mkport.compose.cuda import USUAL_ROWS, CudaProgram, compose_cuda
from mkport.declare import Op
from mkport.declare.generate import Fixed, Value
from mkport.declare.op import Arg
from mkport.plan.flagged import is_flagged
from mkport.plan.graph import Graph, Node


def compose_cuda_for(
    graph: Graph, weights: str, cache: str, rows: int = USUAL_ROWS, title: str = ""
) -> CudaProgram:
    """Composes a CUDA file for steps of this graph alone, of up to `rows` token rows; storage types
    and errors as `compose_cuda`'s."""
    fixed = fixed_arguments(graph)
    return compose_cuda(graph.ops, weights, cache, rows, title, fixed, is_flagged(graph))


def fixed_arguments(graph: Graph) -> dict[tuple[str, str], Value]:
    """What all nodes of an op agree on: integers, finite floats, and tensors that are absent."""
    nodes: dict[Op, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        nodes[node.op].append(node)
    return {
        (op.name, arg.name): value
        for op, its in nodes.items()
        for arg in op.args
        for value in _agreed(arg, its)
    }


def check_fixed(fixed: Fixed, nodes: Iterable[Node]) -> None:
    """Raises ValueError for a node that says otherwise: its program was composed for others."""
    for node in nodes:
        for arg in node.op.args:
            key = (node.op.name, arg.name)
            if key in fixed and [fixed[key]] != _agreed(arg, [node]):
                raise ValueError(
                    f"{node.label} has another {arg.name} than {fixed[key]}, which the program was "
                    "composed for; compose it for this graph, or without fixed arguments."
                )


def _agreed(arg: Arg, nodes: list[Node]) -> list[Value]:
    """The one value that the nodes have, if they have one that can be a constant."""
    values = {_value(arg, node) for node in nodes}
    return list(values) if len(values) == 1 and math.nan not in values else []


def _value(arg: Arg, node: Node) -> Value:
    """A node's value; NaN for what no constant can be."""
    value = getattr(node.bound, arg.name)
    if arg.kind == "tensor":
        return None if value is None else math.nan
    if arg.kind == "int":
        return int(value)
    return float(np.float32(value)) if math.isfinite(value) else math.nan
