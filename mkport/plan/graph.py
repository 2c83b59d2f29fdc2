"""The step graph: tensors and nodes in program order. It says what to do, not who does it when."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mkport.declare import Access, Bound, Op, TensorSpec
from mkport.declare.table import Kind


@dataclass(frozen=True)
class Node:
    """One use of an op: "layer 3 / o_proj". `args` holds tensor names, ints and floats."""

    op: Op
    label: str
    args: dict[str, Any]
    bound: Bound

    @cached_property
    def tiles(self) -> int:
        """How many tiles the node has."""
        return self.op.tiles(self.bound)

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """What all tiles touch: bounds that depend on the tile are arrays of length `tiles`."""
        return tuple(self.op.access(self.bound, np.arange(self.tiles, dtype=np.int64)))


class Graph:
    """Tensors and nodes of one step.

    Program order is the order of `add`: a node reads what the latest earlier node wrote.
    """

    def __init__(self, ops: Iterable[Op] = ()) -> None:
        """`ops` fixes the first opcodes: give a program's ops to plan for that program."""
        self.tensors: dict[str, TensorSpec] = {}
        self.nodes: list[Node] = []
        self._first_ops = tuple(ops)

    def tensor(
        self, name: str, dtype: str, shape: Iterable[int], kind: Kind, logical: Iterable[int] = ()
    ) -> str:
        """Adds a tensor to the table and returns its name; the fields are those of `TensorSpec`.

        Raises ValueError for a name that the table has already, and for what `TensorSpec` refuses.
        """
        if name in self.tensors:
            raise ValueError(f"tensor {name!r} is in the graph already")
        self.tensors[name] = TensorSpec(name, dtype, tuple(shape), kind, tuple(logical))
        return name

    def add(self, op: Op, label: str, **args: Any) -> Node:
        """Appends a node. Every argument of the op is given; an optional tensor may be None or left
        out, an integer with a default left out.

        Raises ValueError for an argument that the op lacks or still needs, and for the name of a
        tensor that was not added before.
        """
        known = {arg.name for arg in op.args}
        optional = {a.name: a.default for a in op.args if a.optional or a.default is not None}
        if unknown := sorted(set(args) - known):
            raise ValueError(f"node {label!r}: op {op.name} has no argument {unknown[0]!r}")
        if missing := sorted(known - set(optional) - set(args)):
            raise ValueError(f"node {label!r}: op {op.name} needs the argument {missing[0]!r}")
        args = optional | args
        for arg in op.tensors:
            if args[arg.name] is not None and args[arg.name] not in self.tensors:
                raise ValueError(f"node {label!r}: no tensor {args[arg.name]!r} for {arg.name!r}")
        node = Node(op, label, args, op.bind(args, self.tensors))
        self.nodes.append(node)
        return node

    def first(self, nodes: int) -> "Graph":
        """The graph cut off after its first `nodes` nodes; same tensors, same opcodes."""
        cut = Graph(self.ops)
        cut.tensors = self.tensors
        cut.nodes = self.nodes[:nodes]
        return cut

    def within(self, ops: Iterable[Op]) -> "Graph":
        """The same graph with the opcodes of a program that is composed of `ops`."""
        same = Graph(ops)
        same.tensors, same.nodes = self.tensors, self.nodes
        return same

    @property
    def ops(self) -> list[Op]:
        """The distinct ops, given ones first, then by first use; a place here is the opcode."""
        return list(dict.fromkeys([*self._first_ops, *(node.op for node in self.nodes)]))

    def tensor_ids(self) -> dict[str, int]:
        """Each tensor's place in the table."""
        return {name: place for place, name in enumerate(self.tensors)}
