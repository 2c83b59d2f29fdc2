"""The bits of a host function's launches: the originals run one after another, their ports as one
megakernel, and what each leaves in the tensors held against the other.

What is run was ported in `launch_ports.py`; how one original is run is `check.py`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mkport.compose.cuda import compose_cuda
from mkport.machines.host.build import HostFault
from mkport.plan import Graph, deal
from mkport.port import check
from mkport.port.chain_file import labels
from mkport.port.decided import argument_names
from mkport.port.finding import Finding
from mkport.port.geometry import Geometry
from mkport.port.launch_ports import LaunchPorts
from mkport.port.port import Port
from mkport.port.run import fitting, run_schedule
from mkport.port.several import WRITES, HostLaunch
from mkport.verify import verify

ORDERS = ((1, 0), (3, 1), (7, 2))  # workers, seed


@dataclass
class Compared:
    """What a comparison found. `same` says that the megakernel left the bits of the launches in
    their order, None that it was not run; `kept` are the tensors of which a part stays as it was.
    """

    same: bool | None = None
    findings: list[Finding] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)


def compare(made: LaunchPorts, tensors: Mapping[str, np.ndarray]) -> Compared:
    """Runs the launches in their order, then their megakernel, on the same `tensors` [any] by name.

    Raises UserError for a launch that cannot be run and for values that are missing.
    """
    result = Compared()
    wanted = _in_order(made, tensors, result)
    if wanted is None:
        return result
    try:
        found = _megakernel(made, tensors, wanted)
    except HostFault as fault:
        found = [f"its threads slip: {fault}"]
    result.same = not found
    if found:
        result.findings.append(Finding(
            "MK180", made.launches[0].line, 1,
            f"The megakernel leaves other bits than the launches in their order: {found[0]}.",
            "It would be wrong.",
            "Check that each buffer has one name in the host code; else this is a fault of "
            "the port, and please report the file.",
        ))  # fmt: skip
    else:
        result.lines.append(
            "the megakernel is verified, and has the bits of the launches in their order on the "
            f"{made.request.machine} machine: with 1, 3 and 7 workers, in shuffled order"
        )
    return result


def _in_order(
    made: LaunchPorts, tensors: Mapping[str, np.ndarray], result: Compared
) -> dict[str, np.ndarray] | None:
    """The originals, launched one after another: what the tensors hold in the end. None where one
    is not well defined; `result` gets the findings, and the tensors that are kept in part."""
    now = dict(tensors)
    written: set[str] = set()
    for at, (launch, port) in enumerate(zip(made.launches, made.ports, strict=True)):
        filled = made.filled(at)
        grid = (*filled.grid, 1, 1)[:3]
        assert port.launch is not None
        geometry = replace(port.launch, grid=(grid[0], grid[1], grid[2]))
        given = {
            param.name: now[launch.tensor(param)] if param.kind == "tensor"
            else filled.numbers[param.name] for param in launch.params
        }  # fmt: skip
        source, full = port._original_for_host(), port._full_name()
        done, found = check.run_first(
            source, made.request.path, port.kernel, full, geometry, given, [],
            port.layout.dynamic, 4, 20.0,
        )  # fmt: skip
        if found:
            result.findings += [port._placed(finding) for finding in found]
            return None
        result.kept |= _kept(launch, port, geometry, given, done.outputs, written)
        written |= launch.touched(*WRITES).keys()
        outputs: Sequence[np.ndarray] = done.outputs
        if made.request.machine == "cuda":
            outputs = check.run_on_gpu(
                port._original_for_gpu(), port.kernel, full, geometry, given,
                port.layout.dynamic,
            )  # fmt: skip
        after = port._wanted(given, outputs, {p.name: p.name for p in launch.params})
        for param in launch.params:
            if param.kind == "tensor" and not param.boxed:
                now[launch.tensor(param)] = after[param.name]
    return now


def _kept(
    launch: HostLaunch, port: Port, geometry: Geometry, given: Mapping[str, Any],
    outputs: Sequence[np.ndarray], written: set[str],
) -> set[str]:  # fmt: skip
    """The tensors that this launch is the first to write and leaves in part as they were:
    with other contents before, it then leaves others."""
    fresh = [
        param.name for param in launch.params
        if launch.modes.get(param.name) == "write" and launch.tensor(param) not in written
        and isinstance(given[param.name], np.ndarray)
    ]  # fmt: skip
    if not fresh:
        return set()
    other = dict(given)
    for name in fresh:
        flipped = np.frombuffer(given[name].tobytes(), np.uint8) ^ 0x15
        other[name] = flipped.view(given[name].dtype).reshape(given[name].shape)
    again, _ = check.run_first(
        port._original_for_host(), port.request.path, port.kernel, port._full_name(), geometry,
        other, [], port.layout.dynamic, 1, 20.0,
    )  # fmt: skip
    names = {p.name: p.name for p in launch.params}
    first, second = (
        port._wanted(values, left, names)
        for values, left in ((given, outputs), (other, again.outputs))
    )
    return {
        launch.tensor(param) for param in launch.params
        if param.name in fresh and first[param.name].tobytes() != second[param.name].tobytes()
    }  # fmt: skip


def _megakernel(
    made: LaunchPorts, tensors: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]
) -> list[str]:
    """Where the megakernel of the launches leaves other bits than `wanted`, in words."""
    graph = Graph()
    arrays: dict[str, np.ndarray] = {}
    for launch in made.launches:
        for param in launch.params:
            if param.kind == "tensor" and launch.tensor(param) not in arrays:
                name = launch.tensor(param)
                arrays[name] = fitting(tensors[name], param.dtype)
                graph.tensor(name, param.dtype, arrays[name].shape, "state")
    for at, (launch, label) in enumerate(zip(made.launches, labels(made.launches), strict=True)):
        filled, port = made.filled(at), made.ports[at]
        grid = (*filled.grid, 1, 1)
        given = {p.name: None if p.kind == "tensor" else filled.numbers[p.name]
                 for p in launch.params}  # fmt: skip
        bound = port.bound(given, Geometry((grid[0], grid[1], grid[2]), None, None))
        called = argument_names(port.kernel)
        renamed = {called[param.name]: launch.tensor(param) for param in launch.params
                   if param.kind == "tensor"}  # fmt: skip
        assert port.op is not None
        graph.add(port.op, label, **{**bound, **renamed})
    ops = list(dict.fromkeys(port.op for port in made.ports if port.op is not None))
    program = compose_cuda(ops, "f32", "f32", rows=1, title=made.request.path.stem)
    graph = graph.within(program.ops)
    found = []
    for workers, seed in ORDERS:
        schedule = check.shuffled(graph, workers, seed) if seed else (
            deal(graph, workers, "strided"))  # fmt: skip
        verify(schedule)
        after = run_schedule(
            program, schedule, {n: a.copy() for n, a in arrays.items()}, made.request.machine, seed
        )
        for name, array in arrays.items():
            want = fitting(wanted[name], graph.tensors[name].dtype)
            if want.tobytes() != after[name].tobytes():
                words = check.difference(want.reshape(array.shape), after[name])
                found.append(f"{name}: {words} ({workers} workers, order {seed})")
    return found
