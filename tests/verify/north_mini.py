"""A decode step with North Mini Code's shape, out of placeholder ops: right tiles, no bodies."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mkport.declare import Access, Bound, Op, immutable, read, tensor, write
from mkport.plan import Graph

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD = 49, 2048, 32, 4, 128
EXPERTS, TOP, WIDTH, DENSE_WIDTH, VOCAB = 128, 8, 768, 3072, 262144
ROWS_PER_TILE = 16  # of a weight: one mma tile
SPLIT, CONTEXT = 256, 8192  # keys of one attention tile, and how many the cache holds


def _norm(a: Bound, tile: np.ndarray) -> Iterator[Access]:
    row = (tile, tile + 1)
    yield read("x", row, (0, a.x.logical[1]))
    yield write("y", row, (0, a.y.logical[1]))


NORM = Op(
    "norm",
    "Normalises one row a tile.",
    (tensor("x", "f32", "in"), tensor("y", "f32", "out")),
    lambda a: a.x.logical[0],
    _norm,
    "none",
    Path(__file__).parent,
)


def _gemm(a: Bound, tile: np.ndarray) -> Iterator[Access]:
    batch, columns = a.y.logical
    out = (tile * ROWS_PER_TILE, (tile + 1) * ROWS_PER_TILE)
    yield immutable("w", out, (0, a.w.logical[1]))
    yield read("x", (0, batch), (0, a.x.logical[1]))
    if a.residual is not None:
        yield read("residual", (0, batch), out)
    yield write("y", (0, batch), out)


GEMM = Op(
    "gemm",
    "16 columns of the output for all rows.",
    (
        tensor("x", "f32", "in"),
        tensor("w", "weight", "weights"),
        tensor("residual", "f32", "added", optional=True),
        tensor("y", "f32", "out"),
    ),
    lambda a: a.y.logical[1] // ROWS_PER_TILE,
    _gemm,
    "none",
    Path(__file__).parent,
)


def _cache(a: Bound, tile: np.ndarray) -> Iterator[Access]:
    row, head = tile // KV_HEADS, tile % KV_HEADS
    columns = (HEADS + head) * HEAD
    yield read("qkv", (row, row + 1), (columns, columns + HEAD))
    yield read("qkv", (row, row + 1), (columns + KV_HEADS * HEAD, columns + (KV_HEADS + 1) * HEAD))
    yield write("kv", (row, row + 1), (1, 2), (head, head + 1))


CACHE = Op(
    "cache",
    "Writes this token's keys and values.",
    (tensor("qkv", "f32", "in"), tensor("kv", "kv", "cache: [row, past or now, head]")),
    lambda a: a.qkv.logical[0] * KV_HEADS,
    _cache,
    "none",
    Path(__file__).parent,
)


def _attend(a: Bound, tile: np.ndarray) -> Iterator[Access]:
    group = HEADS // KV_HEADS
    splits = CONTEXT // SPLIT
    row, head, split = tile // splits // KV_HEADS, tile // splits % KV_HEADS, tile % splits
    query = head * group * HEAD
    yield read("qkv", (row, row + 1), (query, query + group * HEAD))
    yield read("kv", (row, row + 1), (1, 2), (head, head + 1))
    yield immutable("kv", (row, row + 1), (0, 1), (head, head + 1))
    yield write("part", (row, row + 1), (head, head + 1), (split, split + 1))


ATTEND = Op(
    "attend",
    "One key range of one key-value head.",
    (
        tensor("qkv", "f32", "in"),
        tensor("kv", "kv", "cache"),
        tensor("part", "f32", "partial results: [row, head, split]"),
    ),
    lambda a: a.qkv.logical[0] * KV_HEADS * (CONTEXT // SPLIT),
    _attend,
    "none",
    Path(__file__).parent,
)


def _combine(a: Bound, tile: np.ndarray) -> Iterator[Access]:
    row, head = tile // HEADS, tile % HEADS
    group = head // (HEADS // KV_HEADS)
    yield read("part", (row, row + 1), (group, group + 1), (0, a.part.logical[2]))
    yield write("y", (row, row + 1), (head * HEAD, (head + 1) * HEAD))


COMBINE = Op(
    "combine",
    "Joins the key ranges of one head.",
    (tensor("part", "f32", "partial results"), tensor("y", "f32", "out")),
    lambda a: a.y.logical[0] * HEADS,
    _combine,
    "none",
    Path(__file__).parent,
)


def _choose(a: Bound, tile: np.ndarray) -> Iterator[Access]:
    yield read("z", (tile, tile + 1), (0, EXPERTS))
    yield write("chosen", (tile, tile + 1), (0, TOP))


CHOOSE = Op(
    "choose",
    "The top experts of one row.",
    (tensor("z", "f32", "scores"), tensor("chosen", "i32", "experts")),
    lambda a: a.z.logical[0],
    _choose,
    "none",
    Path(__file__).parent,
)


def _expert_up(a: Bound, tile: np.ndarray) -> Iterator[Access]:
    per = WIDTH // 8
    slot, part = tile // per, tile % per
    yield read("chosen", (slot // TOP, slot // TOP + 1), (0, TOP))
    yield read("x", (slot // TOP, slot // TOP + 1), (0, HIDDEN))
    yield immutable("w", (0, EXPERTS), (part * 8, part * 8 + 8), (0, HIDDEN))  # whichever expert
    yield write("y", (slot, slot + 1), (part * 8, part * 8 + 8))


EXPERT_UP = Op(
    "expert_up",
    "8 gate and 8 up rows of one chosen expert.",
    (
        tensor("chosen", "i32", "experts"),
        tensor("x", "f32", "in"),
        tensor("w", "weight", "weights"),
        tensor("y", "f32", "out: [row x chosen, width]"),
    ),
    lambda a: a.y.logical[0] * (WIDTH // 8),
    _expert_up,
    "none",
    Path(__file__).parent,
)


def _expert_down(a: Bound, tile: np.ndarray) -> Iterator[Access]:
    batch = a.x.logical[0]
    out = (tile * ROWS_PER_TILE, (tile + 1) * ROWS_PER_TILE)
    yield read("chosen", (0, batch), (0, TOP))
    yield read("u", (0, a.u.logical[0]), (0, WIDTH))
    yield read("a", (0, batch), out)
    yield read("x", (0, batch), out)
    yield immutable("w", (0, EXPERTS), out, (0, WIDTH))
    yield write("y", (0, batch), out)


EXPERT_DOWN = Op(
    "expert_down",
    "16 columns of the sum over chosen experts, with both residuals.",
    (
        tensor("chosen", "i32", "experts"),
        tensor("u", "f32", "in"),
        tensor("a", "f32", "attention's part"),
        tensor("x", "f32", "residual"),
        tensor("w", "weight", "weights"),
        tensor("y", "f32", "out"),
    ),
    lambda a: HIDDEN // ROWS_PER_TILE,
    _expert_down,
    "none",
    Path(__file__).parent,
)


def step(batch: int) -> Graph:
    """The step graph at one batch width."""
    g = Graph()
    w = [("x0", HIDDEN), ("x1", HIDDEN), ("h", HIDDEN), ("qkv", (HEADS + 2 * KV_HEADS) * HEAD)]
    w += [("att", HEADS * HEAD), ("o", HIDDEN), ("z", EXPERTS), ("up", DENSE_WIDTH)]
    for name, width in w:
        g.tensor(name, "f32", (batch, width), "input" if name == "x0" else "scratch")
    g.tensor("part", "f32", (batch, KV_HEADS, CONTEXT // SPLIT), "scratch")
    g.tensor("chosen", "i32", (batch, TOP), "scratch")
    g.tensor("moe", "f32", (batch * TOP, WIDTH), "scratch")
    g.tensor("x2", "f32", (batch, HIDDEN), "scratch")
    g.tensor("logits", "f32", (batch, VOCAB), "output")
    x, y = "x0", "x1"
    for layer in range(LAYERS):
        kv = g.tensor(f"kv{layer}", "f32", (batch, 2, KV_HEADS), "state")

        def weight(name: str, *shape: int, layer: int = layer) -> str:
            return g.tensor(f"{name}{layer}", "bf16", shape, "weight")

        label = f"layer {layer}"
        g.add(NORM, f"{label} / norm", x=x, y="h")
        if layer:
            g.add(GEMM, f"{label} / router", x="h", w=weight("router", EXPERTS, HIDDEN), y="z")
        qkv = weight("w_qkv", (HEADS + 2 * KV_HEADS) * HEAD, HIDDEN)
        g.add(GEMM, f"{label} / qkv", x="h", w=qkv, y="qkv")
        g.add(CACHE, f"{label} / cache", qkv="qkv", kv=kv)
        if layer:
            g.add(CHOOSE, f"{label} / choose", z="z", chosen="chosen")
            up = weight("w_up", EXPERTS, 2 * WIDTH, HIDDEN)
            g.add(EXPERT_UP, f"{label} / up", chosen="chosen", x="h", w=up, y="moe")
        else:
            g.add(GEMM, f"{label} / up", x="h", w=weight("w_up", DENSE_WIDTH, HIDDEN), y="up")
        g.add(ATTEND, f"{label} / attend", qkv="qkv", kv=kv, part="part")
        g.add(COMBINE, f"{label} / combine", part="part", y="att")
        out = weight("w_o", HIDDEN, HEADS * HEAD)
        if layer:
            g.add(GEMM, f"{label} / o", x="att", w=out, y="o")
            down = weight("w_down", EXPERTS, HIDDEN, WIDTH)
            args = {"chosen": "chosen", "u": "moe", "a": "o", "x": x, "w": down, "y": y}
            g.add(EXPERT_DOWN, f"{label} / down", **args)
        else:
            g.add(GEMM, f"{label} / o", x="att", w=out, residual=x, y="o")
            down = weight("w_down", HIDDEN, DENSE_WIDTH)
            g.add(GEMM, f"{label} / down", x="up", w=down, residual="o", y=y)
        x, y = y, "x2" if y == "x1" else "x1"
    g.add(NORM, "last norm", x=x, y="h")
    g.add(GEMM, "head", x="h", w=g.tensor("embed", "bf16", (VOCAB, HIDDEN), "weight"), y="logits")
    return g
