"""Plans, composes and runs a user's chain, and holds each node to its oracle.

A node is compared on the inputs that the megakernel itself gave it: the step is run cut off before
it and after it. How the file is read is `chain.py`'s.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from mkport.compose import Program, compose_cpu
from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare import TensorSpec
from mkport.declare.case import stored
from mkport.errors import UserError
from mkport.machines.cpu.machine import CpuMachine
from mkport.machines.cpu.memory import NUMPY
from mkport.plan import Graph, Schedule, deal
from mkport.port.chain import Chain
from mkport.testing.check import Verdict, judge
from mkport.testing.step import case_of, run_step
from mkport.trace.collect import collect
from mkport.trace.trace import Trace
from mkport.verify import verify

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Composed:
    """A chain's one file and its verified schedule."""

    chain: Chain
    program: Program | CudaProgram
    schedule: Schedule


def compose_chain(chain: Chain, target: str, workers: int) -> Composed:
    """The megakernel for "cpu" or "cuda". Raises UserError, as for a model's, where an op lacks the
    target's task, and where the verifier refuses."""
    schedule = deal(chain.graph, workers, share="blocks" if target == "cpu" else "strided")
    verify(schedule)
    if target == "cpu":
        program: Program | CudaProgram = compose_cpu(
            schedule.graph.ops, chain.weights, chain.cache, chain.title
        )
    else:
        rows = max((node.op.rows(node.bound) for node in chain.graph.nodes), default=1)
        program = compose_cuda(
            schedule.graph.ops, chain.weights, chain.cache, max(rows, 1), chain.title
        )
    return Composed(chain, program, schedule)


def check_chain(
    chain: Chain, machine: str = "cpu", workers: int = 2, seed: int = 0
) -> list[Verdict]:
    """A verdict a node: within the tolerance law of its oracle, and the same bits when the whole
    chain runs on one worker more, in another order.

    Raises UserError for a node without an oracle, a machine that is not there, and fills that do
    not fit.
    """
    if missing := [node.label for node in chain.graph.nodes if node.label not in chain.oracles]:
        raise UserError(
            f"{chain.path}: node {missing[0]!r} has no oracle: write its function into the file "
            'that `oracle = "..."` names, or `oracle = "file.py:function"` into the node.'
        )
    given = fill_chain(chain, np.random.default_rng(seed))
    composed = compose_chain(chain, "cpu" if machine == "cpu" else "cuda", workers)
    graph = chain.graph.within(composed.program.ops)
    other = run_step(graph, composed.program, machine, given, workers + 1, seed + 1)
    verdicts = []
    states = [run_step(graph.first(0), composed.program, machine, given, workers, seed)]
    for number, node in enumerate(graph.nodes):
        started = time.perf_counter()
        after = run_step(graph.first(number + 1), composed.program, machine, given, workers, seed)
        states.append(after)
        case = case_of(node, states[number])
        got = {name: after[node.args[name]] for name in case.outputs}
        narrow = any(array.dtype == np.uint16 for array in case.arrays.values())
        arithmetic = "bfloat16" if narrow and machine != "cpu" else "float32"
        last = {
            name: other[node.args[name]] if _is_last(graph, number, node.args[name]) else got[name]
            for name in case.outputs
        }
        verdicts.append(
            judge(
                node.op, "step", node.label, chain.weights, case, got, last, started, machine,
                arithmetic, chain.oracles[node.label],
            )
        )  # fmt: skip
    return verdicts


def trace_chain(
    chain: Chain, workers: int, caption: str, seed: int = 0, machine: str = "cpu"
) -> Trace:
    """The times of one step on the machine "cpu", "host" or "cuda", after one that is not counted.

    Raises UserError where the machine is not there.
    """
    composed = compose_chain(chain, "cpu" if machine == "cpu" else "cuda", workers)
    given = fill_chain(chain, np.random.default_rng(seed))
    program, schedule = composed.program, composed.schedule
    if isinstance(program, Program):
        with CpuMachine(program, schedule, given) as cpu:
            return _traced(cpu, caption)
    if machine == "host":
        from mkport.machines.cuda.machine import one_after_another
        from mkport.machines.host.machine import HostMachine

        host = HostMachine(program, schedule, given)
        host.step()
        host.step(trace=True)
        host.times = [one_after_another(times) for times in host.times]
        return collect(host, caption)
    from mkport.machines.cuda.machine import CudaMachine

    return _traced(CudaMachine(program, schedule, given), caption)


def _traced(machine: Any, caption: str) -> Trace:
    machine.step()
    machine.step(trace=True)
    return collect(machine, caption)


def fill_chain(chain: Chain, rng: np.random.Generator) -> Arrays:
    """What the machine is given: inputs, weights and state, by name. Floats are normal when nothing
    is said, divided by the root of the last dimension where they are weights; integers must be
    said. Raises UserError where they are not, and for a fill that does not fit."""
    arrays = {}
    for name, spec in chain.graph.tensors.items():
        if spec.kind in ("input", "weight", "state"):
            arrays[name] = _filled(chain, name, spec, rng)
    return arrays


def _filled(chain: Chain, name: str, spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    fill, kind = chain.fills[name], NUMPY[spec.dtype]
    floats = kind.kind == "f" or spec.dtype == "bf16"
    if fill is None and floats:
        values = rng.standard_normal(spec.shape)
        if spec.kind == "weight" and len(spec.shape) > 1:
            values /= np.sqrt(spec.shape[-1])
    elif isinstance(fill, int | float) and not isinstance(fill, bool):
        values = np.full(spec.shape, fill)
    elif (
        isinstance(fill, tuple)
        and len(fill) == np.prod(spec.shape)
        and all(type(v) in (int, float) for v in fill)
    ):
        values = np.array(fill).reshape(spec.shape)
    elif isinstance(fill, list) and len(fill) == 2 and all(type(v) in (int, float) for v in fill):
        low, high = fill
        drawn = rng.uniform(low, high, spec.shape)
        values = drawn if floats else np.floor(drawn)
    else:
        raise UserError(
            f"{chain.path}: tensor {name!r} ({spec.dtype}) is filled for a check with "
            f"{list(fill) if isinstance(fill, tuple) else fill!r}; write `fill = NUMBER`, `fill = "
            "[LOW, HIGH]` to draw between the two, or `values = [...]` with all of its elements."
        )
    return stored(values, "bf16") if spec.dtype == "bf16" else values.astype(kind)


def _is_last(graph: Graph, number: int, name: str) -> bool:
    """Whether no later node writes the tensor."""
    return not any(
        node.args[access.arg] == name and access.mode in ("write", "update")
        for node in graph.nodes[number + 1 :]
        for access in node.accesses
    )
