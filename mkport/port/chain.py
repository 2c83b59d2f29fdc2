"""A user's own chain of ops, written down in a TOML file: read, checked, made a step graph.

    title = "My MLP"
    ops = ["ops"]                        # folders of ops, beside the file; the library's come too
    oracle = "oracles.py"                # a function for each op or node, called as it is

    [tensors.x]                          # kind: input, weight, scratch, state or output; when left
    dtype = "f32"                        # out, what no node writes is an input, what none reads an
    shape = [4, 64]                      # output, the rest scratch
    fill = [-1.0, 1.0]                   # for checks: a number, or bounds to draw between
                                         # (or: values = [...], each of them, as they lie)

    [[nodes]]
    op = "rms_norm"
    label = "norm"                       # the op's name when left out
    tiles = 4                            # may be left out; refused unless the op says the same
    args = { x = "x", y = "normed", n = 64, eps = 1e-5 }

What runs it and compares it with its oracles is `chain_check.py`'s.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args

from mkport.declare import DTYPE_BYTES, Arg, Op
from mkport.declare.table import Kind
from mkport.errors import UserError
from mkport.library import all_ops, find_op, ops_in
from mkport.plan import Graph
from mkport.plan.graph import Node

Oracle = Callable[[Any], Mapping[str, Any]]
STORED = {"weight": "weights", "kv": "cache"}
KEYS = {"title", "ops", "oracle", "weights", "cache", "tensors", "nodes"}
TENSOR_KEYS = {"dtype", "shape", "kind", "logical", "fill", "values"}
NODE_KEYS = {"op", "label", "tiles", "args", "oracle"}


@dataclass(frozen=True)
class Chain:
    """What the file says. `fills` is how a tensor is filled in a check (its elements, in a tuple),
    `oracles` by label."""

    path: Path
    title: str
    weights: str  # storage of "weight" arguments
    cache: str  # storage of "kv" arguments
    graph: Graph
    fills: dict[str, Any]
    oracles: dict[str, Oracle]


def read_chain(path: Path) -> Chain:
    """Reads a chain's file.

    Raises UserError naming the file, the place in it and the fix for whatever does not fit: keys,
    ops, tensors, arguments, tiles, oracles.
    """
    return _Reader(path, _parse(path)).chain()


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"The chain {path} cannot be read: {error.strerror or error}. Give a TOML file."
        ) from error
    except ValueError as error:  # of TOML and of UTF-8
        raise UserError(f"{path} is no TOML: {error}. Mend that place.") from error


class _Reader:
    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path, self.content = path, content
        self._known(content, KEYS, "the file")
        self.ops = all_ops()
        for folder in self._list(content.get("ops", []), "ops"):
            self.ops |= ops_in(path.parent / str(folder))

    def chain(self) -> Chain:
        """The file's chain. Kinds that it leaves open follow from what the nodes do."""
        stored = {
            key: self._one_of(self.content.get(key, "f32"), ("bf16", "f32"), key)
            for key in STORED.values()
        }
        nodes = self._list(self.content.get("nodes", []), "nodes")
        tensors = self._table(self.content.get("tensors", {}), "[tensors]")
        if not nodes or not tensors:
            self._refuse("the file", "holds no [[nodes]] or no [tensors]")
        kinds = {}
        for name, raw in tensors.items():
            self._known(raw, TENSOR_KEYS, f"tensor {name!r}")
            if "kind" in raw:
                kinds[name] = self._one_of(raw["kind"], get_args(Kind), f"tensor {name!r}: kind")
        draft = self._graph(nodes, tensors, kinds, stored, final=False)
        graph = self._graph(nodes, tensors, _kinds(draft) | kinds, stored, final=True)
        oracles = {}
        for node, raw in zip(graph.nodes, nodes, strict=True):
            if (oracle := self._oracle(node, raw)) is not None:
                oracles[node.label] = oracle
        title = str(self.content.get("title", self.path.stem))
        fills = {name: raw.get("fill") for name, raw in tensors.items()}
        for name, raw in tensors.items():
            if "values" in raw:
                fills[name] = tuple(self._list(raw["values"], f"tensor {name!r}: values"))
        return Chain(self.path, title, stored["weights"], stored["cache"], graph, fills, oracles)

    def _graph(
        self, nodes: list[Any], tensors: Mapping[str, Any], kinds: Mapping[str, Kind],
        stored: Mapping[str, str], final: bool,
    ) -> Graph:  # fmt: skip
        graph = Graph()
        for name, raw in tensors.items():
            self._tensor(graph, name, raw, kinds.get(name, "input"))
        for number, raw in enumerate(nodes):
            node = self._node(graph, raw, f"nodes[{number}]", stored, final)
            if any(node.label == other.label for other in graph.nodes[:-1]):
                self._refuse(f"nodes[{number}]", f"has the label {node.label!r} a second time")
        used = {name for node in graph.nodes for arg in node.op.tensors
                if (name := node.args[arg.name])}  # fmt: skip
        if idle := sorted(set(tensors) - used):
            self._refuse(f"tensor {idle[0]!r}", "is used by no node")
        return graph

    def _op(self, raw: Any, place: str) -> Op:
        if not isinstance(raw.get("op"), str):
            self._refuse(place, 'names no op: it needs `op = "..."`')
        return find_op(raw["op"], self.ops)

    def _tensor(self, graph: Graph, name: str, raw: Any, kind: Kind) -> None:
        place = f"tensor {name!r}"
        dtype = self._one_of(raw.get("dtype", "f32"), tuple(DTYPE_BYTES), f"{place}: dtype")
        shape, logical = (
            self._sizes(raw.get(key, []), f"{place}: {key}") for key in ("shape", "logical")
        )
        if not shape:
            self._refuse(place, "has no shape: it needs `shape = [rows, columns]`")
        try:
            graph.tensor(name, dtype, shape, kind, logical)
        except ValueError as error:
            self._refuse(place, f"does not fit: {error}")

    def _node(
        self, graph: Graph, raw: Any, place: str, stored: Mapping[str, str], final: bool
    ) -> Node:
        self._known(raw, NODE_KEYS, place)
        op = self._op(raw, place)
        label = str(raw.get("label", op.name))
        place = f"{place} ({label!r}, op {op.name})"
        args = self._table(raw.get("args", {}), f"{place}, args,")
        for arg in op.args:
            if arg.name in args:
                self._argument(graph, arg, args[arg.name], place, stored)
        try:
            node = graph.add(op, label, **args)
            said = [t for t in op.valid(node.bound) if isinstance(t, str)] if final else []
            tiles = node.tiles
            _ = node.accesses if not said else ()
        except UserError:
            raise
        except Exception as error:  # the op's own functions, on arguments nobody meant for them
            self._refuse(place, f"has arguments that do not fit its op: {error}")
        if said:
            self._refuse(place, f"does not fit its op: {'; '.join(said)}")
        if raw.get("tiles", tiles) != tiles:
            self._refuse(place, f"says tiles = {raw['tiles']!r}, but its op has {tiles} here")
        return node

    def _argument(
        self, graph: Graph, arg: Arg, value: Any, place: str, stored: Mapping[str, str]
    ) -> None:
        place = f"{place}, argument {arg.name!r},"
        if arg.kind == "int" and not (type(value) is int and -(2**31) <= value < 2**31):
            self._refuse(place, f"is {value!r}, not an int32")
        if arg.kind == "float" and type(value) not in (int, float):
            self._refuse(place, f"is {value!r}, not a number")
        if arg.kind != "tensor":
            return
        if not isinstance(value, str) or value not in graph.tensors:
            self._refuse(place, f"is {value!r}, not the name of a tensor of the file")
        wanted = stored[STORED[arg.dtype]] if arg.dtype in STORED else arg.dtype
        found = graph.tensors[value].dtype
        if found != wanted:
            self._refuse(place, f"is {value!r} of dtype {found}, but the op has {wanted} there")

    def _oracle(self, node: Node, raw: Any) -> Oracle | None:
        """The node's own (`file.py:function`), the file's function of its label or op, the op's."""
        from mkport.testing.parts import load_file, load_part

        if "oracle" in raw:
            file, _, name = str(raw["oracle"]).partition(":")
            found = getattr(load_file(self.path.parent / file), name, None)
            if not callable(found):
                self._refuse(f"node {node.label!r}", f"has no such oracle as {raw['oracle']!r}")
            return found
        if "oracle" in self.content:
            module = load_file(self.path.parent / str(self.content["oracle"]))
            for name in (node.label.replace(" ", "_"), node.op.name):
                if callable(found := getattr(module, name, None)):
                    return found
        if (node.op.folder / "oracle.py").is_file():
            return load_part(node.op, "oracle").oracle
        return None

    def _refuse(self, place: str, what: str) -> NoReturn:
        raise UserError(f"{self.path}: {place} {what}. Mend that place.")

    def _known(self, raw: Any, keys: set[str], place: str) -> None:
        if strange := sorted(set(self._table(raw, place)) - keys):
            known = ", ".join(sorted(keys))
            self._refuse(place, f"has the unknown key {strange[0]!r}; there are {known}")

    def _table(self, raw: Any, place: str) -> dict[str, Any]:
        if not isinstance(raw, dict):
            self._refuse(place, "is no table")
        return raw

    def _list(self, raw: Any, place: str) -> list[Any]:
        if not isinstance(raw, list):
            self._refuse(place, "is no array")
        return raw

    def _one_of(self, value: Any, allowed: tuple[str, ...], place: str) -> Any:
        if value not in allowed:
            self._refuse(place, f"is {value!r}, not one of {', '.join(allowed)}")
        return value

    def _sizes(self, raw: Any, place: str) -> tuple[int, ...]:
        sizes = self._list(raw, place)
        if not all(type(size) is int and 0 < size < 2**31 for size in sizes):
            self._refuse(place, f"is {raw!r}, not a list of positive integers")
        return tuple(sizes)


def _kinds(graph: Graph) -> dict[str, Kind]:
    """What no node writes is an input, what none reads an output, the rest scratch."""
    written: set[str] = set()
    read: set[str] = set()
    for node in graph.nodes:
        for access in node.accesses:
            name = node.args[access.arg]
            if name is not None:
                written |= {name} if access.mode in ("write", "update") else set()
                read |= {name} if access.mode in ("read", "immutable", "update") else set()
    return {
        name: "input" if name not in written else "scratch" if name in read else "output"
        for name in graph.tensors
    }
