"""Turns the parsed JSON of a schedule file into a schedule, refusing whatever has the wrong form.

Each refusal names the file, the place inside it and what belongs there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, get_args

import numpy as np

from mkport.declare import RECORD, RECORD_WORDS, Arg, Op
from mkport.declare.table import DTYPE_BYTES, Kind
from mkport.errors import UserError
from mkport.plan.deal import MAX_WORKERS
from mkport.plan.depend import JOIN
from mkport.plan.graph import Graph
from mkport.plan.schedule import Schedule

MAX_TILES = 1 << 20  # of one node; attention over long contexts has a quarter of that
MAX_ALL_TILES = 1 << 24  # of a file; what every tile touches is kept while it is verified
_MAX_FLOAT = float(np.finfo(np.float32).max)
_INT32 = range(-(2**31), 2**31)
_STORED_AS = {"weight": ("bf16", "f32"), "kv": ("bf16", "f32")}


class Reader:
    """Reads one file's content."""

    def __init__(self, path: Path, ops: Mapping[str, Op]) -> None:
        self._path = path
        self._ops = {JOIN.name: JOIN, **ops}
        self._tiles = 0  # of the nodes read so far

    def schedule(self, content: Mapping[str, Any]) -> Schedule:
        """The schedule of a parsed file. Raises UserError."""
        counters = self._get(content, "counters", int, "the file")
        if not 0 <= counters < 2**31:
            self._refuse("counters", f"is {counters}, but it counts the counters, 0 or more")
        graph = Graph(self._op(name, "ops") for name in self._get(content, "ops", list, "the file"))
        if len(graph.ops) != len(content["ops"]):
            self._refuse("ops", "names an op twice")
        for number, raw in enumerate(self._get(content, "tensors", list, "the file")):
            self._tensor(graph, raw, f"tensors[{number}]")
        for number, raw in enumerate(self._get(content, "nodes", list, "the file")):
            self._node(graph, raw, f"nodes[{number}]")
        if len(graph.ops) != len(content["ops"]):
            self._refuse("ops", f"lacks {graph.ops[-1].name!r}, which a node uses")
        lists = self._get(content, "lists", list, "the file")
        if not lists:
            self._refuse("lists", "is empty, but a schedule has at least one worker")
        if len(lists) > MAX_WORKERS:
            self._refuse("lists", f"holds {len(lists)} workers, more than {MAX_WORKERS}")
        dealt = tuple(self._list(worker, raw) for worker, raw in enumerate(lists))
        records = sum(len(each) for each in dealt)
        if counters > records:
            self._refuse("counters", f"is {counters}, more than there are records ({records})")
        return Schedule(graph, dealt, counters)

    def _refuse(self, place: str, what: str) -> NoReturn:
        raise UserError(
            f"{self._path}: {place} {what}. Mend that place, or write the file again with "
            "`mkport compose --schedule`."
        )

    def _get(self, raw: Any, key: str, kind: type, place: str) -> Any:
        if not isinstance(raw, dict):
            self._refuse(place, "is not an object")
        if key not in raw:
            self._refuse(place, f"lacks the key {key!r}")
        value = raw[key]
        if type(value) is not kind:
            names = {int: "an integer", str: "a text", list: "an array", dict: "an object"}
            self._refuse(f"{place}, key {key!r},", f"holds {_short(value)}, not {names[kind]}")
        return value

    def _op(self, name: Any, place: str) -> Op:
        if not isinstance(name, str) or name not in self._ops:
            known = ", ".join(sorted(self._ops))
            self._refuse(
                place, f"names the op {_short(name)}, which is unknown; there are: {known}"
            )
        return self._ops[name]

    def _tensor(self, graph: Graph, raw: Any, place: str) -> None:
        name = self._get(raw, "name", str, place)
        place = f"tensor {name!r}"
        dtype, kind = (self._get(raw, key, str, place) for key in ("dtype", "kind"))
        shape, logical = (self._shape(raw, key, place) for key in ("shape", "logical"))
        if dtype not in DTYPE_BYTES:
            self._refuse(place, f"has the dtype {dtype!r}, not one of {', '.join(DTYPE_BYTES)}")
        if kind not in get_args(Kind):
            self._refuse(place, f"is of kind {kind!r}, not one of {', '.join(get_args(Kind))}")
        try:
            graph.tensor(name, dtype, shape, kind, logical)
        except ValueError as error:
            self._refuse(place, f"does not fit: {error}")

    def _shape(self, raw: Any, key: str, place: str) -> list[int]:
        sizes: list[int] = self._get(raw, key, list, place)
        if not sizes or not all(type(size) is int and 0 < size < 2**31 for size in sizes):
            self._refuse(place, f"has the {key} {_short(sizes)}, not a list of positive integers")
        return sizes

    def _node(self, graph: Graph, raw: Any, place: str) -> None:
        op = self._op(self._get(raw, "op", str, place), place)
        label = self._get(raw, "label", str, place)
        args = self._get(raw, "args", dict, place)
        place = f"{place} ({label!r}, op {op.name})"
        for arg in op.args:
            if arg.name in args:
                self._argument(graph, arg, args[arg.name], place)
        try:
            node = graph.add(op, label, **args)
            if not 0 <= node.tiles <= MAX_TILES:
                self._refuse(place, f"has {node.tiles} tiles, not 0 to {MAX_TILES}")
            self._tiles += node.tiles
            if self._tiles > MAX_ALL_TILES:
                self._refuse(place, f"brings the tiles to {self._tiles}, over {MAX_ALL_TILES}")
            _ = node.accesses
        except UserError:
            raise
        except Exception as error:  # the op's own functions, on arguments nobody meant for them
            self._refuse(place, f"has arguments that do not fit its op: {error}")

    def _argument(self, graph: Graph, arg: Arg, value: Any, place: str) -> None:
        place = f"{place}, argument {arg.name!r},"
        if arg.kind == "int" and not (type(value) is int and value in _INT32):
            self._refuse(place, f"is {_short(value)}, not an int32")
        if arg.kind == "float" and type(value) not in (int, float):
            self._refuse(place, f"is {_short(value)}, not a number")
        if arg.kind == "float" and not abs(value) <= _MAX_FLOAT:
            self._refuse(place, f"is {_short(value)}, which no float32 holds")
        if arg.kind != "tensor" or (value is None and arg.optional):
            return
        if not isinstance(value, str) or value not in graph.tensors:
            self._refuse(place, f"is {_short(value)}, not the name of a tensor of the file")
        wanted, found = _STORED_AS.get(arg.dtype, (arg.dtype,)), graph.tensors[value].dtype
        if found not in wanted:
            self._refuse(place, f"is the {found} tensor {value!r}, but {' or '.join(wanted)} fits")

    def _list(self, worker: int, raw: Any) -> np.ndarray:
        """The records of a worker, int32 [records, RECORD_WORDS]."""
        if not isinstance(raw, list):
            self._refuse(f"lists[{worker}]", "is not an array of records")
        for index, record in enumerate(raw):
            place = f"the record {index} of worker {worker}"
            if not isinstance(record, list):
                self._refuse(place, f"is {_short(record)}, not an array")
            if len(record) != RECORD_WORDS:
                self._refuse(place, f"has {len(record)} words, not {RECORD_WORDS}")
            for word, value in enumerate(record):
                if type(value) is not int or value not in _INT32:
                    field = next(f.name for f in RECORD.values() if f.first <= word < f.end)
                    self._refuse(
                        f"{place}, word {word} ({field}),", f"is {_short(value)}, no int32"
                    )
        return np.array(raw, np.int32).reshape(len(raw), RECORD_WORDS)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
