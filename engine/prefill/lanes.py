"""What of a chunk can run side by side: a layer's attention beside its experts, where both read the
same input. Which lane each node has, and when a lane waits for the other, follows from what nodes
read and write; the streams behind the lanes are the caller's."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mkport.plan.graph import Node

MAIN, SIDE = 0, 1
ATTENTION = ("gemm_rope", "rope", "attention", "attention_combine")


@dataclass(frozen=True)
class Turn:
    """Where a node runs."""

    lane: int
    waits: bool  # for all that the other lane was given before


def turns(nodes: Sequence[Node]) -> list[Turn]:
    """A turn for each of the nodes [nodes], in order: all in the main lane, unless something there
    goes on while attention is in the other."""
    found, beside = _dealt(nodes)
    return found if beside else [Turn(MAIN, False)] * len(nodes)


@dataclass
class _Lane:
    wrote: dict[str, int] = field(default_factory=dict)  # the node that did last, by tensor
    read: dict[str, int] = field(default_factory=dict)
    last: int = -1  # node
    seen: int = -1  # the last node that the other lane has waited for


def _dealt(nodes: Sequence[Node]) -> tuple[list[Turn], bool]:
    """The turns, and whether anything goes on in the main lane while the other has work."""
    lanes, found, beside = (_Lane(), _Lane()), list[Turn](), False
    heads = {node.args["x"] for node in nodes if node.op.name == "rope"}
    heads |= {
        node.args["y"] for node in nodes if node.op.name in ("attention", "attention_combine")
    }
    for i, node in enumerate(nodes):
        read, written = touched(node)
        side = _is_attention(node, heads)
        own, other = lanes[side], lanes[not side]
        late = [other.wrote.get(name, -1) for name in read | written]
        late += [other.read.get(name, -1) for name in written]
        waits = max(late, default=-1) > other.seen
        if waits:
            other.seen = i
        beside = beside or (not side and other.last > other.seen)
        own.last = i
        own.wrote |= dict.fromkeys(written, i)
        own.read |= dict.fromkeys(read, i)
        found.append(Turn(int(side), waits))
    return found, beside


def _is_attention(node: Node, heads: set[str]) -> bool:
    """Projections, what turns their heads, attention itself, and the product behind it; `heads` are
    the tensors that hold projected or attended heads."""
    if node.op.name == "gemm":
        return node.args["x"] in heads or node.args["y"] in heads
    return node.op.name in ATTENTION


def touched(node: Node) -> tuple[set[str], set[str]]:
    """The tensors that a node reads, and those that it writes."""
    read = {node.args[x.arg] for x in node.accesses if x.mode != "write"}
    written = {node.args[x.arg] for x in node.accesses if x.mode in ("write", "update")}
    return read, written
