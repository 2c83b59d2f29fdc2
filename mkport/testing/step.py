"""The step form: an op inside a whole model's megakernel, compared with the standalone kernel.

The step is run twice from the same state: cut off just before the op's node, which gives the
node's inputs, and just after it, which gives its outputs.
"""

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mkport.compose import Program
from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.compose.fixed import fixed_arguments
from mkport.declare import Op
from mkport.declare.case import Case
from mkport.errors import UserError
from mkport.machines.cpu.machine import CpuMachine
from mkport.machines.host.machine import HostMachine
from mkport.plan import Graph, Node, deal
from mkport.testing import tiny
from mkport.testing.check import Verdict, judge
from mkport.testing.cuda_forms import run_standalone as run_standalone_cuda
from mkport.testing.forms import run_standalone
from mkport.verify import verify


def check_step(
    op: Op, machine: str = "cpu", *, dtype: str = "bf16", workers: int = 2, seed: int = 0
) -> list[Verdict]:
    """Checks the last node of this op in the step of each small model that has one; of an op with
    optional tensors, the last one of each choice of them.

    Raises UserError for an op that no model's step holds, and for a model with an op that the
    machine has no body of.
    """
    shape = replace(tiny.SHAPE, weights=dtype, cache=dtype)
    verdicts = []
    for family, graph in tiny.graphs(shape).items():
        given = tiny.fill(graph, shape, np.random.default_rng(seed))
        for place in last_places(graph, op.name):
            started = time.perf_counter()
            fixed = fixed_arguments(graph) if machine == "cuda" else None  # as models run there
            program = (
                tiny.program(dtype)
                if machine == "cpu"
                else compose_cuda(graph.ops, dtype, dtype, fixed=fixed)
            )
            before, after = (
                run_step(graph.first(place + n), program, machine, given, workers, seed)
                for n in (0, 1)
            )
            node = graph.nodes[place]
            case = case_of(node, before)
            got = {name: after[node.args[name]] for name in case.outputs}
            label = f"{family} {node.label}"
            if machine == "cpu":
                standalone = run_standalone(op, case)
            else:
                standalone = run_standalone_cuda(op, case, machine, seed)
            narrow = any(array.dtype == np.uint16 for array in case.arrays.values())
            arithmetic = "bfloat16" if narrow and machine != "cpu" else "float32"
            verdicts.append(
                judge(op, "step", label, dtype, case, got, standalone, started, machine, arithmetic)
            )
    if not verdicts:
        raise UserError(f"No model's step holds the op {op.name}; check its solo form instead.")
    return verdicts


def last_places(graph: Graph, op: str) -> list[int]:
    """The number of a graph's last node of the op, for each choice of optional tensors that it has:
    [choices], ascending."""
    found: dict[frozenset[str], int] = {}
    for place, node in enumerate(graph.nodes):
        if node.op.name == op:
            found[frozenset(n for n, value in node.args.items() if value is not None)] = place
    return sorted(found.values())


def run_step(
    graph: Graph,
    program: Program | CudaProgram,
    machine: str,
    given: Mapping[str, np.ndarray],
    workers: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """The tensors after one step over copies of the given ones; scratch starts as NaN.

    `program` is composed for the `machine`, "cpu", "host" or "cuda". In the host build `seed` draws
    the order that workers are stepped in.
    """
    schedule = deal(graph, workers, share="blocks" if machine == "cpu" else "strided")
    verify(schedule)
    given = {name: array.copy() for name, array in given.items()}
    if machine == "cpu":
        assert isinstance(program, Program)
        with CpuMachine(program, schedule, given) as cpu:
            cpu.poison()
            cpu.step()
            return cpu.tensors
    assert isinstance(program, CudaProgram)
    if machine == "host":
        host = HostMachine(program, schedule, given, seed=seed)
        host.poison()
        host.step()
        return host.tensors
    from mkport.machines.cuda.machine import CudaMachine

    gpu = CudaMachine(program, schedule, given)
    gpu.poison()
    gpu.step()
    return {name: array.get() for name, array in gpu.tensors.items()}


def case_of(node: Node, tensors: dict[str, np.ndarray]) -> Case:
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
