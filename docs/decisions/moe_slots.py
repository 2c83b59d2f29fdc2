"""Measures what static slots cost a mixture of experts, and what tickets could win back.

Writes `moe_slots.json` beside itself and puts its tables into `moe_slots.md`. The layer has North
Mini Code's shape: 128 experts, 8 of them a token, width 768, hidden size 2048, bfloat16.

    python docs/decisions/moe_slots.py           # two minutes, 1.3 GB of memory
    python docs/decisions/moe_slots.py --tables  # only the tables again, from the JSON
"""

import heapq
import json
import os
import platform
import sys
from pathlib import Path
from statistics import mean, median

import numba
import numpy as np

from mkport.bandwidth import read_bandwidth, usable_cores
from mkport.compose import Program, compose_cpu
from mkport.declare import spread_step
from mkport.files import write_text
from mkport.library import find_op
from mkport.machines.cpu.machine import CpuMachine
from mkport.plan import Graph, deal
from mkport.verify import verify

HERE = Path(__file__).parent
EXPERTS, TOP, HIDDEN, FFN, BATCH = 128, 8, 2048, 768, 8
TILES = {"moe_up": FFN // 16, "moe_down": HIDDEN // 16}  # for each slot
EXPERT_BYTES = 3 * FFN * HIDDEN * 2
WORKERS, STEPS, ROUTINGS = 2, 24, 40
SKEWS = {"uniform": 0.0, "skewed": 1.0}  # expert of rank r is chosen like r ** -skew
DEALS = ("slot by slot", "in turn", "in turn, strided", "spread", "spread, strided", "tickets")


class Layer:
    """The up and down nodes of one layer on threads; routing is an input."""

    def __init__(self, program: Program, weights: dict, capacity: int, slot_count: int) -> None:
        g, rows = Graph(program.ops), capacity * TOP
        g.tensor("count", "i32", (1,), "input")
        g.tensor("slots", "i32", (slot_count + 1, 2), "input")
        g.tensor("pairs", "i32", (rows,), "input")
        g.tensor("x", "f32", (capacity, HIDDEN), "input")
        g.tensor("gate_up", "bf16", (EXPERTS, 2 * FFN, HIDDEN), "weight")
        g.tensor("down", "bf16", (EXPERTS, HIDDEN, FFN), "weight")
        g.tensor("act", "f32", (rows, FFN), "scratch", (slot_count, FFN))
        g.tensor("y", "f32", (rows, HIDDEN), "output", (slot_count, HIDDEN))
        args = {"slots": "slots", "pairs": "pairs", "slot_count": slot_count}
        step = spread_step(slot_count)
        up = {
            "count": "count",
            "x": "x",
            "w_gate": "gate_up",
            "w_up": "gate_up",
            "up_row": FFN,
            "top": TOP,
        }
        g.add(find_op("moe_up"), "up", act="act", n=FFN, k=HIDDEN, slot_step=step, **args, **up)
        g.add(
            find_op("moe_down"),
            "down",
            act="act",
            w="down",
            y="y",
            n=HIDDEN,
            k=FFN,
            slot_step=step,
            **args,
        )
        schedule = deal(g, WORKERS)
        verify(schedule)
        self.machine = CpuMachine(program, schedule, weights)
        self.machine.tensors["x"][:] = np.random.default_rng(0).standard_normal((capacity, HIDDEN))

    def step(self, counts: np.ndarray, turn: int = 0) -> np.ndarray:
        """Busy ns of each node and worker [2, WORKERS], with `counts[e]` tokens of expert e.

        `turn` moves all experts on, so that no step finds the last one's weights in a cache.
        """
        tensors = self.machine.tensors
        used = np.flatnonzero(counts)
        ends = np.cumsum(counts[used])
        tensors["slots"][:] = (-1, ends[-1] if len(used) else 0)
        tensors["slots"][: len(used), 0] = (used + turn * TOP) % EXPERTS
        tensors["slots"][: len(used), 1] = ends - counts[used]
        tensors["pairs"][:] = np.arange(len(tensors["pairs"]))
        self.machine.step(trace=True)
        return np.array([[w[node, 2] - w[node, 1] for w in self.machine.times] for node in (0, 1)])

    def wall(self) -> int:
        """From the first task's start to the last one's end, of the latest step, in ns."""
        return max(w[:, 2].max() for w in self.machine.times) - min(
            w[:, 1].min() for w in self.machine.times
        )


def routing(rng: np.random.Generator, tokens: int, skew: float) -> np.ndarray:
    """Tokens of each expert: int [EXPERTS]; every token has TOP different experts."""
    popularity = -skew * np.log(np.arange(1, EXPERTS + 1))
    keys = popularity + rng.gumbel(size=(tokens, EXPERTS))
    chosen = np.argsort(-keys, axis=1)[:, :TOP]
    return np.bincount(chosen.ravel(), minlength=EXPERTS)


def measure() -> dict:
    """Everything that is measured on this machine."""
    program = compose_cpu([find_op(name) for name in TILES], "bf16", "bf16")
    block = np.random.default_rng(0).integers(0x3C00, 0x3D00, 2**16, np.uint16)  # about 0.01
    shapes = {"gate_up": (EXPERTS, 2 * FFN, HIDDEN), "down": (EXPERTS, HIDDEN, FFN)}
    weights = {name: np.resize(block, shape) for name, shape in shapes.items()}
    return {
        "machine": {"cpu": _cpu(), "cores": usable_cores(), "load": os.getloadavg()[0]},
        "versions": {m.__name__: m.__version__ for m in (numba, np)} | {"python": sys.version},
        "bandwidth_gb_s": read_bandwidth(WORKERS) / 1e9,
        "layers": [_layer(program, weights, *case) for case in ((1, 1), (8, 1), (8, 8))],
        "tile_ns": _tile_times(program, weights),
        "imbalance": _imbalance(program, weights),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _layer(program: Program, weights: dict, capacity: int, live: int) -> dict:
    """Static slots for `capacity` tokens, against a layer that has no slot too many."""
    counts = routing(np.random.default_rng(live), live, 0.0)
    used, slots = int((counts > 0).sum()), min(EXPERTS, capacity * TOP)
    static, exact = (Layer(program, weights, capacity, n) for n in (slots, used))
    walls: dict[str, list[int]] = {"static": [], "exact": [], "empty": []}
    for turn in range(STEPS):
        for name, layer in (("static", static), ("exact", exact)):
            layer.step(counts, turn)
            walls[name].append(int(layer.wall()))
        busy = static.step(np.zeros(EXPERTS, int))  # nothing to do in any slot
        walls["empty"].append(int(busy.sum()))
    empty_tile = min(walls["empty"]) / (slots * sum(TILES.values()))
    for layer in (static, exact):
        layer.machine.close()
    return {
        "capacity": capacity,
        "live": live,
        "slots": slots,
        "used": used,
        "bytes": used * EXPERT_BYTES,
        "empty_tile_ns": empty_tile,
        "empty_tiles": (slots - used) * sum(TILES.values()),
        "wall_ns": walls,
    }


def _tile_times(program: Program, weights: dict) -> dict:
    """ns of a tile with 0 to 8 tokens, both workers busy: best of the steps."""
    layer = Layer(program, weights, BATCH, TOP)
    times: dict[str, list[float]] = {name: [] for name in TILES}
    for tokens in range(BATCH + 1):
        counts = np.zeros(EXPERTS, int)
        counts[:TOP] = tokens
        busy = np.min([layer.step(counts, turn).sum(axis=1) for turn in range(3 * STEPS)], axis=0)
        for node, name in enumerate(TILES):
            times[name].append(busy[node] / (TOP * TILES[name]))
    layer.machine.close()
    return times


def _imbalance(program: Program, weights: dict) -> dict:
    """The busier worker's share over the mean, node by node, over routings of a full batch."""
    layer = Layer(program, weights, BATCH, BATCH * TOP)
    found = {}
    for name in ("equal work", *SKEWS):
        rng = np.random.default_rng(1)
        ratios = []
        for turn in range(STEPS):
            if name in SKEWS:
                counts = routing(rng, BATCH, SKEWS[name])
            else:  # one token in every slot: what differs is not the routing's doing
                counts = (np.arange(EXPERTS) < BATCH * TOP).astype(int)
            busy = np.min([layer.step(counts, 5 * turn + i) for i in range(3)], axis=0)
            ratios.append((busy.max(axis=1) / busy.mean(axis=1)).tolist())
        found[name] = ratios
    layer.machine.close()
    return found


def simulate(tile_ns: dict) -> list[dict]:
    """Time over the ideal (all work, evenly shared) of each way to deal, from tiles' times."""
    flat = {name: [t[0], *[t[1]] * BATCH] for name, t in tile_ns.items()}
    rows = []
    for costs_name, costs in (("as measured", tile_ns), ("the same for 1 to 8 tokens", flat)):
        for routed, skew in SKEWS.items():
            for workers in (2, 16, 132):
                rng = np.random.default_rng(2)
                over: dict[str, list[float]] = {deal_name: [] for deal_name in DEALS}
                for _ in range(ROUTINGS):
                    counts = np.sort(routing(rng, BATCH, skew))
                    counts = rng.permutation(counts[counts > 0])
                    for name in DEALS:
                        spans = [
                            _span(costs[op], counts, n, workers, name) for op, n in TILES.items()
                        ]
                        ideal = sum(
                            sum(costs[op][c] for c in counts) * n / workers
                            for op, n in TILES.items()
                        )
                        over[name].append(sum(spans) / ideal - 1)
                row = {"costs": costs_name, "routing": routed, "workers": workers}
                rows.append(row | {name: mean(values) for name, values in over.items()})
    return rows


def _span(costs: list[float], counts: np.ndarray, columns: int, workers: int, how: str) -> float:
    """When the last worker ends a node whose slots have `counts` tokens."""
    slots = np.zeros(BATCH * TOP, int)
    slots[: len(counts)] = counts
    time, tile = np.array(costs)[slots], np.arange(len(slots) * columns)
    if how == "tickets":  # no empty tile is drawn, and drawing costs nothing
        ends = [0.0] * workers
        for t in np.tile(time[: len(counts)], columns):
            heapq.heapreplace(ends, ends[0] + t)
        return max(ends)
    if how == "slot by slot":
        time = time[tile // columns]
    else:
        time = time[tile * (spread_step(len(slots)) if "spread" in how else 1) % len(slots)]
    if "strided" in how:
        return max(time[w::workers].sum() for w in range(workers))
    edges = [len(time) * w // workers for w in range(workers + 1)]
    return max(time[a:b].sum() for a, b in zip(edges, edges[1:], strict=False))


def tables(result: dict) -> str:
    """The page's tables."""
    lines = [
        "| rows of the step | tokens now | slots | used | static, ms | no slot too many, ms | "
        "in empty tiles | GB/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for layer in result["layers"]:
        static, exact = (median(layer["wall_ns"][n]) for n in ("static", "exact"))
        best = min(layer["wall_ns"]["static"])
        idle = layer["empty_tile_ns"] * layer["empty_tiles"] / WORKERS / static
        lines.append(
            f"| {layer['capacity']} | {layer['live']} | {layer['slots']} | {layer['used']} | "
            f"{static / 1e6:.2f} | {exact / 1e6:.2f} | {idle:.2%} | "
            f"{layer['bytes'] / static:.1f} (best {layer['bytes'] / best:.1f}) |"
        )
    lines += ["", "| tokens in the slot | " + " | ".join(str(n) for n in range(BATCH + 1)) + " |"]
    lines.append("|---" * (BATCH + 2) + "|")
    for name, times in result["tile_ns"].items():
        lines.append(f"| {name}, us a tile | " + " | ".join(f"{t / 1e3:.3g}" for t in times) + " |")
    lines += ["", "| routing | busier of 2 workers over the mean: up | down |", "|---|---|---|"]
    for name, ratios in result["imbalance"].items():
        up, down = (median(r[node] for r in ratios) for node in (0, 1))
        lines.append(f"| {name} | {up:.3f} | {down:.3f} |")
    lines += ["", "| a tile's time | routing | workers | " + " | ".join(DEALS) + " |"]
    lines.append("|---" * (3 + len(DEALS)) + "|")
    for row in result["simulated"]:
        over = " | ".join(f"{row[name]:+.1%}" for name in DEALS)
        lines.append(f"| {row['costs']} | {row['routing']} | {row['workers']} | {over} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, simulates, writes the JSON, and puts the tables into the page."""
    raw, page = HERE / "moe_slots.json", HERE / "moe_slots.md"
    if "--tables" not in sys.argv:
        result = measure()
        result["simulated"] = simulate(result["tile_ns"])
        write_text(raw, json.dumps(result, indent=1) + "\n")
    text = page.read_text()
    mark = "<!-- tables -->\n"
    before, _, after = text.split(mark)
    write_text(page, before + mark + tables(json.loads(raw.read_text())) + "\n" + mark + after)


if __name__ == "__main__":
    main()
