"""The step form: an op inside a whole model's megakernel, compared with the standalone kernel.

The step is run twice from the same state: cut off just before the op's node, which gives the
node's inputs, and just after it, which gives its outputs.
"""

import time
from dataclasses import replace

import numpy as np

from mkport.compose import Program
from mkport.declare import Op
from mkport.declare.case import Case
from mkport.errors import UserError
from mkport.machines.cpu.machine import CpuMachine
from mkport.plan import Graph, Node, deal
from mkport.testing import tiny
from mkport.testing.check import Verdict, judge
from mkport.testing.forms import run_standalone
from mkport.verify import verify


def check_step(op: Op, *, dtype: str = "bf16", workers: int = 2, seed: int = 0) -> list[Verdict]:
    """Checks the last node of this op in the step of each small model that has one.

    Raises UserError for an op that no model's step holds.
    """
    shape = replace(tiny.SHAPE, weights=dtype, cache=dtype)
    verdicts = []
    for family, graph in tiny.graphs(shape).items():
        places = [n for n, node in enumerate(graph.nodes) if node.op.name == op.name]
        if not places:
            continue
        started = time.perf_counter()
        program = tiny.program(dtype)
        given = tiny.fill(graph, shape, np.random.default_rng(seed))
        before = _run(graph.first(places[-1]), program, given, workers)
        after = _run(graph.first(places[-1] + 1), program, given, workers)
        node = graph.nodes[places[-1]]
        case = _case(node, before)
        got = {name: after[node.args[name]] for name in case.outputs}
        label = f"{family} {node.label}"
        standalone = run_standalone(op, case)
        verdicts.append(judge(op, "step", label, dtype, case, got, standalone, started))
    if not verdicts:
        raise UserError(f"No model's step holds the op {op.name}; check its solo form instead.")
    return verdicts


def _run(
    graph: Graph, program: Program, given: dict[str, np.ndarray], workers: int
) -> dict[str, np.ndarray]:
    """The tensors after one step over copies of the given ones; scratch starts as NaN."""
    schedule = deal(graph, workers)
    verify(schedule)
    with CpuMachine(program, schedule, {name: a.copy() for name, a in given.items()}) as machine:
        machine.poison()
        machine.step()
        return machine.tensors


def _case(node: Node, tensors: dict[str, np.ndarray]) -> Case:
    """The node's inputs as a case of its op; tensors that are one stay one array."""
    copies = {name: array.copy() for name, array in tensors.items()}
    arrays, logical = {}, {}
    for arg in node.op.tensors:
        name = node.args[arg.name]
        if name is not None:
            arrays[arg.name] = copies[name]
            logical[arg.name] = getattr(node.bound, arg.name).logical
    values = {arg.name: node.args[arg.name] for arg in node.op.args if arg.kind != "tensor"}
    written = {a.arg for a in node.accesses if a.mode in ("write", "update")}
    outputs = tuple(arg.name for arg in node.op.tensors if arg.name in written)
    return Case(arrays, values, outputs, logical)
