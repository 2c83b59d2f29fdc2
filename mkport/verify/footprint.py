"""What a graph's tiles touch, as integer tables that the checks run over. Knows no schedule.

Boxes are in logical coordinates, and an op declares the same boxes whatever the data: a routing or
a set of lengths only decides which bytes inside a declared box are used. One pass over the boxes
therefore covers every routing and every set of lengths at once.

Every written tensor is cut at all bounds of all boxes that touch it; the pieces are called atoms,
and each box is a whole number of them. Tensors that hold something before the step and that nobody
writes in it cannot be raced for and are left out once their bounds are checked.
"""

from dataclasses import dataclass

import numpy as np

from mkport.declare import Access
from mkport.declare.record import MAX_ARGS
from mkport.declare.table import MAX_DIMS
from mkport.plan.graph import Graph, Node
from mkport.verify.arguments import argument_problems
from mkport.verify.report import Box, Problem, tile_text

# Columns of `Footprint.rows`.
NODE, MODE, VARIES, BOX, APART = range(5)
# Values of the MODE column.
READ, WRITE, UPDATE, IMMUTABLE = range(4)
MODES = {"read": READ, "write": WRITE, "update": UPDATE, "immutable": IMMUTABLE}
WRITES = ("write", "update")
EMPTY = ("scratch", "flagged", "output")  # kinds of tensors that hold nothing before a step
_Touch = tuple[int, int, np.ndarray, bool]  # node, mode, bounds, apart


@dataclass(frozen=True)
class Footprint:
    """The tables of one graph, and the problems found while building them.

    A row of `rows` is an access. Its boxes are `boxes[BOX]` for all tiles or, where it varies,
    `boxes[BOX + tile]`; APART says that the node's tiles do not meet in it. Rows lie grouped by
    tensor, in program order within one.
    """

    graph: Graph
    opcodes: np.ndarray  # int64 [nodes]
    args: np.ndarray  # int64 [nodes, MAX_ARGS], the argument words a record must carry
    tiles: np.ndarray  # int64 [nodes]
    tensors: tuple[str, ...]  # those written in the step or empty before it
    rows: np.ndarray  # int64 [accesses, 5]
    first: np.ndarray  # int64 [tensors + 1], where a tensor's rows start
    boxes: np.ndarray  # int32 [boxes, 2 * MAX_DIMS], in atoms
    grid: np.ndarray  # int64 [tensors, MAX_DIMS], atoms in each dimension
    cuts: tuple[tuple[np.ndarray, ...], ...]  # per tensor and dimension: int64 [cuts], ascending
    problems: tuple[Problem, ...]

    @staticmethod
    def of(graph: Graph) -> "Footprint":
        """Builds the tables; `problems` names unfit arguments, accesses outside shapes."""
        problems = _table_problems(graph)
        unfit = argument_problems(graph)
        problems += (problem for found in unfit.values() for problem in found)
        touched: dict[str, list[_Touch]] = {}
        kept = {name for name, spec in graph.tensors.items() if spec.kind in EMPTY}
        for number, node in enumerate(graph.nodes):
            for access in () if number in unfit else node.accesses:
                problem = _access_problem(graph, node, access)
                if problem is not None:
                    problems.append(problem)
                elif (name := node.args[access.arg]) is not None and node.tiles:
                    bounds = _bounds(access, node.tiles)
                    problems += _bounds_problems(graph, node, access, bounds)
                    touched.setdefault(name, []).append(
                        (number, MODES[access.mode], bounds, access.apart)
                    )
                    if access.mode in WRITES:
                        kept.add(name)
        tiles = [0 if n in unfit else node.tiles for n, node in enumerate(graph.nodes)]
        return _tables(graph, {n: t for n, t in touched.items() if n in kept}, tiles, problems)

    @property
    def atoms(self) -> int:
        """How many pieces the written tensors are cut into."""
        return int(self.grid.prod(axis=1).sum())

    def box(self, tensor: int, row: int, tile: int) -> Box:
        """The logical box of an access of one tile."""
        at = self.rows[row, BOX] + (tile if self.rows[row, VARIES] else 0)
        return tuple(
            (int(cut[self.boxes[at, 2 * d]]), int(cut[self.boxes[at, 2 * d + 1]]))
            for d, cut in enumerate(self.cuts[tensor])
        )


def _table_problems(graph: Graph) -> list[Problem]:
    """Each tensor has storage of its own, so two tensors overlap only if the table mixes names."""
    problems = []
    owner: dict[str, str] = {}
    for key, spec in graph.tensors.items():
        first = owner.setdefault(spec.name, key)
        if first != key or spec.name != key:
            problems.append(
                Problem(
                    "table",
                    f"the tensor table holds {spec.name!r} under the name {key!r}"
                    + (f" and under {first!r}" if first != key else "")
                    + ": give every tensor one name of its own.",
                    tensor=spec.name,
                )
            )
    return problems


def _access_problem(graph: Graph, node: Node, access: Access) -> Problem | None:
    where = f"{node.label}: op {node.op.name} declares the access {access.mode} of {access.arg!r}"
    if access.mode not in MODES:
        return Problem("access", f"{where}, but the modes are {', '.join(MODES)}.")
    if access.arg not in {arg.name for arg in node.op.tensors}:
        return Problem("access", f"{where}, which is not one of its tensor arguments.")
    name = node.args[access.arg]
    if name is None:
        return None
    spec = graph.tensors[name]
    if access.mode in WRITES and spec.kind in ("weight", "input"):
        return Problem(
            "access",
            f"{where}, but {name} is of kind {spec.kind}, which no task may write: "
            "write to a scratch, state or output tensor.",
            tensor=name,
        )
    if len(access.box) != len(spec.logical):
        return Problem(
            "bounds",
            f"{where} in {len(access.box)} dimensions, but {name} has the logical shape "
            f"{list(spec.logical)}: give one range per dimension.",
            tensor=name,
        )
    if any(np.ndim(b) and np.shape(b) != (node.tiles,) for r in access.box for b in r):
        return Problem(
            "bounds",
            f"{where} with bounds that are not one number for each of its {node.tiles} tiles: "
            "derive them from the tile numbers that the op's access function is given.",
            tensor=name,
        )
    return None


def _bounds(access: Access, tiles: int) -> np.ndarray:
    """The boxes of an access, int64 [1 or tiles, dimensions, 2]."""
    varies = any(isinstance(b, np.ndarray) and b.ndim for r in access.box for b in r)
    bounds = np.empty((tiles if varies else 1, len(access.box), 2), np.int64)
    for d, (lo, hi) in enumerate(access.box):
        bounds[:, d, 0] = lo
        bounds[:, d, 1] = hi
    return bounds


def _bounds_problems(graph: Graph, node: Node, access: Access, bounds: np.ndarray) -> list[Problem]:
    name = node.args[access.arg]
    shape = graph.tensors[name].logical
    lo, hi = bounds[..., 0], bounds[..., 1]
    if not ((lo < 0) | (hi > shape) | (lo > hi)).any():
        return []
    bad = int(((lo < 0) | (hi > shape) | (lo > hi)).any(axis=1).argmax())
    box = tuple((int(a), int(b)) for a, b in bounds[bad])
    np.maximum(hi, lo, out=hi)  # keeps the tables sound for the checks that follow
    return [
        Problem(
            "bounds",
            f"{node.label} tile {bad}: its access {access.mode} {tile_text(name, box)} leaves the "
            f"logical shape {list(shape)}: correct the box in op {node.op.name}'s access function "
            "or the node's arguments.",
            tensor=name,
            box=box,
        )
    ]


def _tables(
    graph: Graph,
    touched: dict[str, list[_Touch]],
    tiles: list[int],
    problems: list[Problem],
) -> Footprint:
    opcode = {op: code for code, op in enumerate(graph.ops)}
    ids = graph.tensor_ids()
    args = np.zeros((len(graph.nodes), MAX_ARGS), np.int64)
    for number, node in enumerate(graph.nodes):
        words = node.op.encode(node.args, ids)
        args[number, : len(words)] = words
    rows: list[tuple[int, int, int, int, int]] = []
    first = [0]
    boxes: list[np.ndarray] = [np.zeros((0, 2 * MAX_DIMS), np.int32)]
    at = 0
    cuts: list[tuple[np.ndarray, ...]] = []
    for accesses in touched.values():
        bounds = np.concatenate([b for _, _, b, _ in accesses])
        compressed = np.tile(np.array([0, 1] * MAX_DIMS, np.int32), (len(bounds), 1))
        edges = []
        for d in range(bounds.shape[1]):
            cut, place = np.unique(bounds[:, d], return_inverse=True)
            compressed[:, 2 * d : 2 * d + 2] = place.reshape(-1, 2)
            edges.append(cut)
        cuts.append(tuple(edges))
        boxes.append(compressed)
        for number, mode, b, apart in accesses:
            rows.append((number, mode, int(len(b) > 1), at, int(apart)))
            at += len(b)
        first.append(len(rows))
    grid = np.ones((len(cuts), MAX_DIMS), np.int64)
    for t, edges_of in enumerate(cuts):
        grid[t, : len(edges_of)] = [max(len(cut) - 1, 1) for cut in edges_of]
    return Footprint(
        graph=graph,
        opcodes=np.array([opcode[node.op] for node in graph.nodes], np.int64),
        args=args,
        tiles=np.array(tiles, np.int64),
        tensors=tuple(touched),
        rows=np.array(rows, np.int64).reshape(-1, 5),
        first=np.array(first, np.int64),
        boxes=np.concatenate(boxes),
        grid=grid,
        cuts=tuple(cuts),
        problems=tuple(problems),
    )
