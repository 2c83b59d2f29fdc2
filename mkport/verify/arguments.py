"""Checks that nodes' arguments fit their tensors: what each op says that they must satisfy.

Bodies compute addresses from arguments and trust them, so this comes before any proof about boxes.
"""

from collections.abc import Iterator

from mkport.declare.table import DTYPE_BYTES
from mkport.declare.valid import Shared
from mkport.plan.graph import Graph, Node
from mkport.verify.report import Problem

_STORED_AS: dict[str, tuple[str, ...]] = {dtype: (dtype,) for dtype in DTYPE_BYTES}
_STORED_AS |= {"weight": ("bf16", "f32"), "kv": ("bf16", "f32")}
_ONE_USE = ("input", "scratch", "flagged")


def argument_problems(graph: Graph) -> dict[int, list[Problem]]:
    """The problems of each node that has any, by the node's number."""
    problems: dict[int, list[Problem]] = {}
    agreed = _Agreed()
    for number, node in enumerate(graph.nodes):
        reasons = list(_kind_reasons(graph, node)) or list(_reasons(node, agreed))
        reasons += agreed.uses(graph, node)
        if reasons:
            problems[number] = [_problem(node, reason) for reason in reasons]
    return problems


def _problem(node: Node, reason: str) -> Problem:
    return Problem(
        "argument",
        f"{node.label}: the arguments of op {node.op.name} do not fit: {reason}. Correct the "
        "node's arguments or the tensor.",
    )


def _kind_reasons(graph: Graph, node: Node) -> Iterator[str]:
    """Tensors that are absent or of the wrong storage type."""
    for arg in node.op.tensors:
        name = node.args[arg.name]
        if name is None:
            if not arg.optional:
                yield f"{arg.name} is absent"
        elif (found := graph.tensors[name].dtype) not in (fits := _STORED_AS[arg.dtype]):
            yield f"{arg.name} is the {found} tensor {name}, not {' or '.join(fits)}"


def _reasons(node: Node, agreed: "_Agreed") -> Iterator[str]:
    for said in node.op.valid(node.bound):
        if not isinstance(said, Shared):
            yield said
        elif (reason := agreed.refusal(node, said)) is not None:
            yield reason


class _Agreed:
    """What the nodes so far said of their tensors."""

    def __init__(self) -> None:
        self._lowest: dict[tuple[str, str], tuple[int, Node]] = {}
        self._highest: dict[tuple[str, str], tuple[int, Node]] = {}
        self._use: dict[str, tuple[str, Node]] = {}

    def refusal(self, node: Node, said: Shared) -> str | None:
        """Why this cannot be agreed with an earlier node, if so; else it is taken down."""
        key = said.tensor, said.what
        lowest, highest = self._lowest.get(key), self._highest.get(key)
        if said.fresh or lowest is None or highest is None:
            self._lowest[key], self._highest[key] = (said.low, node), (said.high, node)
            return None
        if said.high < lowest[0] or said.low > highest[0]:
            short = said.high < lowest[0]
            bound, other = lowest if short else highest
            exact = lowest[0] == highest[0]
            limit = f"{bound}" if exact else f"at {'least' if short else 'most'} {bound}"
            here = f"{said.low}" if said.low == said.high else f"{said.low} to {said.high}"
            return f"{said.what} of {said.tensor}: {here} here, but {limit} in {other.label}"
        if said.low > lowest[0]:
            self._lowest[key] = said.low, node
        if said.high < highest[0]:
            self._highest[key] = said.high, node
        return None

    def uses(self, graph: Graph, node: Node) -> list[str]:
        """Integers are in range for one use, whoever makes them: a count is no token id."""
        reasons = []
        for arg in node.op.tensors:
            name = node.args[arg.name]
            if name is None or arg.dtype != "i32" or graph.tensors[name].kind not in _ONE_USE:
                continue
            use, other = self._use.setdefault(name, (arg.name, node))
            if use != arg.name:
                reasons.append(f"{arg.name} is {name}, which is {other.label}'s {use}")
        return reasons
