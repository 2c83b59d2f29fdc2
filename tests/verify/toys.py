"""Toy ops with numpy bodies, and random step graphs of them on small shared tensors."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mkport.declare import Access, Bound, Op, immutable, integer, read, tensor, update, write
from mkport.plan import Graph, Node

ROWS, COLUMNS = 2, 12
SOURCES = tuple(f"s{i}" for i in range(6))
_ARGS = (
    tensor("dst", "f32", "written"),
    *(tensor(name, "f32", "read", optional=True) for name in SOURCES),
    tensor("w", "weight", "weights"),
    integer("down", "tiles over the rows: 1 or 2"),
    integer("across", "tiles over the columns"),
    integer("width", "columns of a tile"),
    integer("first", "first column written"),
    integer("whole", "1: each tile reads columns lo to hi of all rows; 0: its own columns"),
    integer("lo", "first column read"),
    integer("hi", "one past the last column read"),
    integer("frozen", "1: s0 is declared immutable"),
)


def tile_box(a: Bound, tile: np.ndarray | int) -> tuple[tuple, tuple]:
    """Rows and columns that a tile writes."""
    column = a.first + tile // a.down * a.width
    rows = (0, ROWS) if a.down == 1 else (tile % 2, tile % 2 + 1)
    return rows, (column, column + a.width)


def _touches(a: Bound, tile: np.ndarray, put: object) -> Iterator[Access]:
    rows, columns = tile_box(a, tile)
    yield immutable("w", (0, ROWS), columns)
    for name in SOURCES:
        if getattr(a, name) is not None:
            take = immutable if name == "s0" and a.frozen else read
            yield take(name, (0, ROWS), (a.lo, a.hi)) if a.whole else take(name, rows, columns)
    yield put("dst", rows, columns)  # type: ignore[operator]


def _op(name: str, put: object) -> Op:
    return Op(
        name,
        "A toy.",
        _ARGS,
        lambda a: a.down * a.across,
        lambda a, tile: _touches(a, tile, put),
        "sources in order",
        Path(__file__).parent,
        awaits=SOURCES[1:],
    )


MIX = _op("mix", write)
BUMP = _op("bump", update)


def execute(node: Node, tile: int, memory: dict[str, np.ndarray]) -> None:
    """Runs one tile: float32 arithmetic that shows in its bits whatever came before."""
    if not node.tiles:
        return
    a = node.bound
    rows, columns = (slice(*b) for b in tile_box(a, tile))
    value = memory["w"][:, columns].sum() + np.float32(0.37) * np.float32(tile + 1)
    for name in SOURCES:
        if (spec := getattr(a, name)) is not None:
            window = (slice(None), slice(a.lo, a.hi)) if a.whole else (rows, columns)
            value = value * np.float32(0.9) + np.sin(memory[spec.name][window]).sum()
    out = memory[a.dst.name]
    if node.op is BUMP:
        value = value + np.float32(1.3) * out[rows, columns]
    out[rows, columns] = value + np.arange(columns.stop - columns.start, dtype=np.float32)


def fresh_memory(graph: Graph) -> dict[str, np.ndarray]:
    """All tensors of a graph; scratch and outputs poisoned, the others filled by a fixed rule."""
    memory = {}
    for place, (name, spec) in enumerate(graph.tensors.items()):
        poison = spec.kind in ("scratch", "output")
        numbers = np.cos(np.arange(ROWS * COLUMNS, dtype=np.float32) + place)
        memory[name] = (
            np.full((ROWS, COLUMNS), np.nan, np.float32)
            if poison
            else numbers.reshape(ROWS, COLUMNS)
        )
    return memory


def _geometry(dice: random.Random, all_columns: bool) -> dict[str, int]:
    width = dice.choice([1, 2, 3, 4, 6, 12] if all_columns else [1, 2, 3, 4])
    across = COLUMNS // width if all_columns else dice.randint(1, COLUMNS // width)
    first = dice.randint(0, COLUMNS - across * width)
    return {"down": dice.choice([1, 1, 2]), "across": across, "width": width, "first": first}


def _reads(dice: random.Random) -> dict[str, int]:
    lo = dice.randint(0, COLUMNS - 1)
    whole = dice.randint(0, 1)
    return {"whole": whole, "lo": lo, "hi": dice.randint(lo + 1, COLUMNS), "frozen": 0}


def random_graph(seed: int) -> Graph:
    """Fills all scratch tensors, then mixes and bumps random tiles; every graph is sound."""
    dice = random.Random(seed)
    g = Graph()
    shape = (ROWS, COLUMNS)
    g.tensor("w", "f32", shape, "weight")
    g.tensor("in", "f32", shape, "input")
    g.tensor("past", "f32", shape, "state")  # nobody writes it
    names = [f"t{i}" for i in range(dice.randint(2, 7))]
    for name in names:
        kind = dice.choice(["scratch", "scratch", "scratch", "state", "output"])
        g.tensor(name, "f32", shape, kind)  # type: ignore[arg-type]
        if kind != "state" or dice.random() < 0.5:
            source = {"s0": "in"} if dice.random() < 0.5 else {}
            args = _geometry(dice, True) | _reads(dice)
            g.add(MIX, f"fill {name}", dst=name, w="w", **source, **args)
    for number in range(dice.randint(2, 8)):
        op = dice.choice([MIX, MIX, BUMP])
        dst = dice.choice(names)
        others = [name for name in names if name != dst]
        chosen = dice.sample(others, dice.randint(0, min(len(others), len(SOURCES) - 1)))
        args = _geometry(dice, False) | _reads(dice)
        sources = dict(zip(SOURCES[1:], chosen, strict=False))
        if dice.random() < 0.3:
            sources["s0"] = "past"
            args["frozen"] = 1
        elif dice.random() < 0.3 and args["first"] > 0 and args["whole"]:
            sources["s0"] = dst  # reads what lies beside the columns it writes
            args |= {"lo": 0, "hi": args["first"]}
        g.add(op, f"{op.name} {number}", dst=dst, w="w", **sources, **args)
    return g
