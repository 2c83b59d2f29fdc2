"""Runs a port as its megakernel: on the host build or a GPU, alone or among other nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare import Op
from mkport.declare.table import Kind
from mkport.errors import UserError
from mkport.machines.cpu.memory import NUMPY, allocate
from mkport.plan import Graph, Schedule, deal

Arrays = dict[str, np.ndarray]


def fitting(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array, of any shape, seen as a storage type: unsigned as signed, booleans and anything as
    bytes.

    Raises UserError for an array of another type.
    """
    kind = NUMPY[dtype]
    if array.dtype == kind:
        return array
    plain = array.dtype.kind in "iu" and kind.kind in "iu" and array.dtype.itemsize == kind.itemsize
    if dtype == "u8" or plain:
        return np.ascontiguousarray(array).view(kind)
    raise UserError(f"An array of {array.dtype} is given where the kernel has {kind} ({dtype}).")


def graph_with(
    op: Op, arguments: Mapping[str, Any], ops: Sequence[Op] = (), times: int = 1
) -> tuple[Graph, list[Arrays]]:
    """A graph that uses the op as often as `times` says, each time on arrays of its own, and those
    arrays, flat.

    An array that is given for several arguments is one tensor. `ops` fixes the first opcodes.
    """
    graph = Graph(ops)
    copies: list[Arrays] = []
    for number in range(times):
        arrays: Arrays = {}
        names: dict[int, str] = {}
        bound: dict[str, Any] = {}
        for arg in op.args:
            value = arguments.get(arg.name)
            if arg.kind != "tensor" or value is None:
                bound[arg.name] = value
                continue
            if id(value) not in names:
                name = names[id(value)] = f"{arg.name}_{number}"
                given = fitting(value, arg.dtype)
                arrays[name] = allocate(arg.dtype, (max(given.size, 1),))
                arrays[name][: given.size] = given.reshape(-1)
                kind: Kind = "state"
                graph.tensor(name, arg.dtype, arrays[name].shape, kind)
            bound[arg.name] = names[id(value)]
        graph.add(op, f"{op.name} {number}", **bound)
        copies.append(arrays)
    return graph, copies


def run_port(
    op: Op,
    arguments: Mapping[str, Any],
    machine: str = "host",
    *,
    workers: int = 2,
    seed: int = 0,
    program: CudaProgram | None = None,
) -> Arrays:
    """Runs a port alone and returns its tensors by argument name, in the arguments' own shapes.

    `arguments` holds arrays, numbers, and None for null pointers. Raises UserError for arguments
    that do not fit, HostFault for what a GPU would not survive.
    """
    from mkport.verify import verify

    graph, (arrays,) = graph_with(op, arguments, program.ops if program else ())
    schedule = deal(graph, workers, share="strided")
    verify(schedule)
    program = program or compose_cuda([op], "f32", "f32", rows=1)
    after = run_schedule(program, schedule, arrays, machine, seed)
    return outputs_of(op, arguments, schedule.graph.nodes[0].args, after)


def outputs_of(
    op: Op, arguments: Mapping[str, Any], bound: Mapping[str, Any], after: Arrays
) -> Arrays:
    """A node's tensors by argument name, in the shapes and types of what was given."""
    found: Arrays = {}
    for arg in op.tensors:
        given = arguments.get(arg.name)
        if given is not None:
            flat = after[bound[arg.name]][: fitting(given, arg.dtype).size]
            found[arg.name] = flat.view(given.dtype).reshape(given.shape)
    return found


def run_schedule(
    program: CudaProgram, schedule: Schedule, arrays: Arrays, machine: str, seed: int
) -> Arrays:
    """Runs one step of a schedule and returns its tensors, NumPy arrays by name. Raises UserError
    for another machine than "host" and "cuda", HostFault for what a GPU would not survive."""
    if machine == "host":
        from mkport.machines.host.apart import ApartMachine

        host = ApartMachine(program, schedule, arrays, seed=seed)
        host.step()
        return {name: np.array(array) for name, array in host.tensors.items()}
    if machine != "cuda":
        raise UserError(f"A port runs on the machines host and cuda, not on {machine!r}.")
    from mkport.machines.cuda.machine import CudaMachine

    device = CudaMachine(program, schedule, arrays)
    device.step()
    return {name: array.get() for name, array in device.tensors.items()}


__all__ = ["Arrays", "graph_with", "outputs_of", "run_port", "run_schedule"]
