"""A mixture-of-experts layer, or several, as a graph of the real ops with random tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mkport.compose import Program
from mkport.declare import Op, spread_step
from mkport.declare.case import stored
from mkport.library import find_op
from mkport.machines.cpu.machine import CpuMachine
from mkport.plan import Graph, deal
from mkport.verify import verify

Arrays = dict[str, np.ndarray]
OPS = ("rmsnorm", "gemm", "topk", "moe_group", "moe_up", "moe_down", "moe_combine")


@dataclass(frozen=True)
class Sizes:
    """A layer's shape and its router's rule."""

    tokens: int = 8  # that a step can hold
    experts: int = 8
    top: int = 2
    hidden: int = 64
    ffn: int = 48
    softmax: bool = False
    renormalise: bool = False
    layers: int = 1
    weights: str = "bf16"
    at_once: bool = False  # topk groups the pairs too
    first_part: int = 0  # slots of the first of two nodes of each half; 0: one node has all


def chain(s: Sizes, ops: Sequence[Op] = ()) -> Graph:
    """Norm, router, topk, group, up, down, combine, for each layer; x is read and updated."""
    g = Graph(ops)
    slots = min(s.experts, s.tokens * s.top)
    pairs = s.tokens * s.top
    g.tensor("count", "i32", (1,), "input")
    g.tensor("x", "f32", (s.tokens, s.hidden), "state")
    g.tensor("h", "f32", (s.tokens, s.hidden), "scratch")
    g.tensor("z", "f32", (s.tokens, s.experts), "scratch")
    g.tensor("ids", "i32", (s.tokens, s.top), "scratch")
    g.tensor("chosen", "f32", (s.tokens, s.top), "scratch")
    g.tensor("pairs", "i32", (pairs,), "scratch")
    g.tensor("slots", "i32", (slots + 1, 2), "scratch")
    g.tensor("act", "f32", (pairs, s.ffn), "scratch", (slots, s.ffn))
    g.tensor("y", "f32", (pairs, s.hidden), "scratch", (slots, s.hidden))
    o = {name: find_op(name) for name in OPS}
    lists = {"slots": "slots", "pairs": "pairs", "slot_count": slots}
    edges = [0, s.first_part, slots] if s.first_part else [0, slots]
    parts = [
        lists
        | {"first_slot": first, "slot_count": end - first, "slot_step": spread_step(end - first)}
        for first, end in pairwise(edges)
    ]
    for n in range(s.layers):
        norm = g.tensor(f"norm{n}", "f32", (s.hidden,), "weight")
        router = g.tensor(f"router{n}", s.weights, (s.experts, s.hidden), "weight")
        gate_up = g.tensor(f"gate_up{n}", s.weights, (s.experts, 2 * s.ffn, s.hidden), "weight")
        down = g.tensor(f"down{n}", s.weights, (s.experts, s.hidden, s.ffn), "weight")
        rule = {"softmax": int(s.softmax), "renormalise": int(s.renormalise), "scale": 1.0}
        at = f"layer {n}"
        g.add(
            o["rmsnorm"], f"{at} / norm", count="count", x="x", w=norm, y="h", groups=1,
            k=s.hidden, eps=1e-6,
        )  # fmt: skip
        g.add(
            o["gemm"], f"{at} / router", count="count", x="h", w=router, y="z", n=s.experts,
            k=s.hidden,
        )  # fmt: skip
        g.add(
            o["topk"], f"{at} / topk", count="count", z="z", ids="ids", weights="chosen",
            experts=s.experts, k=s.top, **rule, **(lists if s.at_once else {"slot_count": 0}),
        )  # fmt: skip
        if not s.at_once:
            g.add(
                o["moe_group"], f"{at} / group", count="count", ids="ids", experts=s.experts,
                k=s.top, **lists,
            )  # fmt: skip
        for part in parts:
            g.add(
                o["moe_up"], f"{at} / up", count="count", x="h", w_gate=gate_up, w_up=gate_up,
                act="act", n=s.ffn, k=s.hidden, top=s.top, up_row=s.ffn, **part,
            )  # fmt: skip
        for part in parts:
            g.add(
                o["moe_down"], f"{at} / down", act="act", w=down, y="y", n=s.hidden, k=s.ffn, **part
            )
        g.add(
            o["moe_combine"], f"{at} / combine", count="count", weights="chosen", y="y", x="x",
            n=s.hidden, top=s.top, mean=0, eps=0.0,
        )  # fmt: skip
    return g


def random_arrays(s: Sizes, rng: np.random.Generator, rows: int) -> Arrays:
    """Weights, and an x whose rows behind `rows` are NaN."""
    x = rng.standard_normal((s.tokens, s.hidden), np.float32)
    x[rows:] = np.nan
    arrays: Arrays = {"count": np.array([rows], np.int32), "x": x}
    for n in range(s.layers):
        arrays[f"norm{n}"] = 1 + 0.1 * rng.standard_normal(s.hidden, np.float32)
        for name, shape in (
            ("router", (s.experts, s.hidden)),
            ("gate_up", (s.experts, 2 * s.ffn, s.hidden)),
            ("down", (s.experts, s.hidden, s.ffn)),
        ):
            values = rng.standard_normal(shape, np.float32) / np.sqrt(np.float32(shape[-1]))
            arrays[f"{name}{n}"] = stored(values, s.weights)
    return arrays


def run(s: Sizes, arrays: Arrays, program: Program, workers: int = 2) -> Arrays:
    """The tensors after one step over copies of the given ones; scratch starts as NaN."""
    schedule = deal(chain(s, program.ops), workers)
    verify(schedule)
    given = {name: array.copy() for name, array in arrays.items()}
    with CpuMachine(program, schedule, given) as machine:
        machine.poison()
        machine.step()
        return machine.tensors
