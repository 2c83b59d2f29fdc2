"""Runs the original and its port on the same arguments, and holds the bits against each other.

The port runs as tasks of a megakernel: between tasks that fill the arena with NaN, beside a second
instance of itself, with few and many workers, its tiles in shuffled order.
"""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare import RECORD, Op
from mkport.errors import UserError
from mkport.machines.cuda.headers import include_folders
from mkport.machines.cuda.nvrtc import nvrtc
from mkport.plan import Graph, Schedule, deal
from mkport.port.compile import ORIGINAL
from mkport.port.fill.op import OP as FILL
from mkport.port.finding import Finding
from mkport.port.geometry import Geometry
from mkport.port.kernel import Kernel, Param
from mkport.port.original import Launch, Original, run_original
from mkport.port.run import Arrays, graph_with, outputs_of, run_schedule
from mkport.verify import verify

SCALARS: dict[str, type] = {
    "int": np.int32, "int32_t": np.int32, "unsigned": np.uint32, "unsigned int": np.uint32,
    "uint": np.uint32, "uint32_t": np.uint32, "short": np.int16, "int16_t": np.int16,
    "unsigned short": np.uint16, "uint16_t": np.uint16, "char": np.int8, "signed char": np.int8,
    "int8_t": np.int8, "unsigned char": np.uint8, "uint8_t": np.uint8, "bool": np.bool_,
    "float": np.float32, "signed": np.int32,
}  # fmt: skip
CODES = {
    "race": "MK201", "uninitialised": "MK202", "out of bounds": "MK203", "misaligned": "MK204",
    "divergent barrier": "MK205", "early exit": "MK205", "deadlock": "MK205", "crash": "MK206",
    "seeds": "MK207", "time limit": "MK208", "outside": "MK203", "arithmetic": "MK307",
}  # fmt: skip
FIXES = {
    "MK201": "Put a barrier between the two accesses, or give each thread a place of its own.",
    "MK202": "Write it before it is read.",
    "MK203": "Guard the access, or give a larger buffer.",
    "MK204": "Align the address to the size of what is read there.",
    "MK205": "Let all threads of a block reach the same barriers.",
    "MK206": "Run it under compute-sanitizer, and mend what that says.",
    "MK207": "Give sums a fixed order.",
    "MK208": "Give smaller arguments, or mend the loop.",
}
COPY_FIX = "Wait for the copy, and put a barrier behind that, before others read what it brings."
FITS = ("MK203", "MK206", "MK208", "MK204")  # what made-up arguments may be to blame for


def original_launch(
    kernel: Kernel, name: str, launch: Geometry, arguments: Mapping[str, Any], shared: int
) -> Launch:
    """The original's launch on arguments, by parameter; `name` is the kernel's in full."""
    return Launch(
        kernel=name,
        grid=launch.grid or (1, 1, 1),
        block=launch.block or (1, 1, 1),
        args=tuple(_scalar(param, arguments[param.name]) for param in kernel.params),
        shared=shared,
        names=tuple(param.name for param in kernel.params),
    )


def _scalar(param: Param, value: Any) -> Any:
    if param.boxed:
        return np.asarray(value).tobytes()
    if param.kind == "tensor":
        return value
    kind = SCALARS.get(param.type)
    if kind is None:
        kind = np.uint64 if "unsigned" in param.type or param.type in ("size_t", "uint64_t") else (
            np.int64)  # fmt: skip
    return kind(value)


def run_first(
    source: str,
    path: Path,
    kernel: Kernel,
    name: str,
    launch: Geometry,
    arguments: Mapping[str, Any],
    unfilled: Sequence[str],
    shared: int,
    seeds: int,
    limit_s: float,
    aside: Collection[int] = (),
) -> tuple[Original, tuple[Finding, ...]]:
    """Runs the original; its fatal findings in the words of a port."""
    made = original_launch(kernel, name, launch, arguments, shared)
    empty = [arguments[name] for name in unfilled if isinstance(arguments[name], np.ndarray)]
    done = run_original(
        source,
        [made],
        path=path,
        seeds=seeds,
        unfilled=empty,
        limit_s=limit_s,
        aside=aside,
    )
    lines = source.rpartition("\n#line 1\n")[2].split("\n")
    found = [_translated(f) for f in done.findings if f.fatal and not _flat(f, lines)]
    if not done.equal and not found:
        found.append(_translated_as("MK207", 0, "Runs in different orders leave different bits."))
    return done, tuple(found)


def _flat(finding: Any, lines: Sequence[str]) -> bool:
    """Whether what was taken outside of an array may be another row of a larger one, `s[0][40]`."""
    here = 0 < finding.line <= len(lines)
    doubted = finding.kind == "outside" and "AddressSanitizer" not in finding.text
    return doubted and here and "][" in lines[finding.line - 1].replace(" ", "")


def warnings(done: Original) -> list[Finding]:
    """What of an original C++ leaves undefined, and every GPU does alike: warned of."""
    return [
        Finding(
            "MK307", f.line, 1, f"{f.text[0].upper()}{f.text[1:]}.",
            "C++ leaves the result open, so that another compiler, or another version of it, may "
            "compute something else.",
            "Compute it in unsigned integers, or take care of the case before.", "warning",
        )
        for f in done.findings if f.kind == "arithmetic"
    ]  # fmt: skip


def run_on_gpu(
    source: str,
    kernel: Kernel,
    name: str,
    launch: Geometry,
    arguments: Mapping[str, Any],
    shared: int,
) -> tuple[np.ndarray, ...]:
    """Runs the original on the current GPU: its distinct arrays, each in its own shape, in order
    of their first use.

    It is compiled as the megakernel is: denormal numbers stay what they are, which CuPy's own
    compilation would flush.

    Raises UserError where there is no GPU, or NVRTC refuses the file.
    """
    from mkport.machines.cuda.gpu import gpu

    arch = gpu().arch
    import cupy

    try:
        compiled = nvrtc().compile(
            source, arch, f"{kernel.name}.cu", instances=[name], include=include_folders(),
            more=ORIGINAL,
        )  # fmt: skip
    except UserError as error:
        raise UserError(f"The GPU's compiler refuses {kernel.name}: {error}") from error
    there: dict[int, Any] = {}
    boxed = {param.name for param in kernel.params if param.boxed}
    for key, value in arguments.items():
        if isinstance(value, np.ndarray) and key not in boxed:
            there.setdefault(id(value), cupy.asarray(value.view(_plain(value))))
    values = [_scalar(param, arguments[param.name]) for param in kernel.params]
    given = [
        np.frombuffer(value, f"V{len(value)}").reshape(()) if isinstance(value, bytes)
        else there.get(id(value), np.uint64(0) if value is None else value)
        for value in values
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "original.cubin"  # loaded when it is first run
        path.write_bytes(compiled.cubin)
        function = cupy.RawModule(path=str(path)).get_function(compiled.names[name])
        function.max_dynamic_shared_size_bytes = shared
        grid, block = launch.grid or (1, 1, 1), launch.block or (1, 1, 1)
        function(grid, block, tuple(given), shared_mem=shared)
        return tuple(array.get() for array in there.values())


def _plain(array: np.ndarray) -> np.dtype:
    return np.dtype(np.uint8) if array.dtype == np.bool_ else array.dtype


def _translated(finding: Any) -> Finding:
    code = CODES.get(finding.kind, "MK206")
    return _translated_as(code, finding.line, f"{finding.kind}: {finding.text}")


def _translated_as(code: str, line: int, cause: str) -> Finding:
    cause = cause[0].upper() + cause[1:]
    fix = COPY_FIX if "in the background" in cause else FIXES[code]
    return Finding(
        code, line, 1 if line else 0,
        cause if cause.endswith(".") else cause + ".",
        "The original is not well defined, so that there are no bits to keep.",
        fix, "undefined",
    )  # fmt: skip


def sandwich(op: Op, arguments: Mapping[str, Any], ops: Sequence[Op]) -> tuple[Graph, list[Arrays]]:
    """Garbage, the op, garbage, the op again on arrays of its own."""
    alone, copies = graph_with(op, arguments, ops, times=2)
    graph = Graph(ops)
    graph.tensors = alone.tensors
    size = max(op.block_shared(alone.nodes[0].bound), 4) // 4 * 4
    for number, node in enumerate(alone.nodes):
        graph.add(FILL, f"garbage {number}", bytes=size, tiles=4)
        graph.nodes.append(node)
    return graph, copies


def shuffled(graph: Graph, workers: int, seed: int) -> Schedule:
    """The graph dealt tile by tile to random workers, each node's tiles in random order."""
    rng = np.random.default_rng(seed)
    base = deal(graph, workers, "strided")
    signal, run, at = RECORD["signal"].first, RECORD["run"].first, RECORD["node"].first
    lists: list[list[np.ndarray]] = [[] for _ in range(workers)]
    templates: dict[int, np.ndarray] = {}
    for records in base.lists:
        for record in records:
            templates.setdefault(int(record[at]), record)
    for number in sorted(templates):
        node = base.graph.nodes[number]
        for tile in rng.permutation(node.tiles) if node.tiles else [-1]:
            record = templates[number].copy()
            record[signal + 1] = 1
            record[run : run + 3] = (tile, 1, 1) if tile >= 0 else (0, 1, 0)
            lists[int(rng.integers(workers))].append(record)
    words = templates[next(iter(templates))].size
    stacked = tuple(
        np.stack(records) if records else np.zeros((0, words), np.int32) for records in lists
    )
    return Schedule(base.graph, stacked, base.counters)


def port_program(op: Op) -> CudaProgram:
    """A program of the op and of the one that leaves garbage behind."""
    return compose_cuda([FILL, op], "f32", "f32", rows=1)


def compare(
    op: Op,
    arguments: Mapping[str, Any],
    wanted: Mapping[str, np.ndarray],
    machine: str = "host",
    orders: Sequence[tuple[int, int]] = ((1, 0), (3, 1), (7, 2)),
    program: CudaProgram | None = None,
) -> list[str]:
    """Runs the port in a sandwich for each (workers, seed) of `orders`; says where bits differ."""
    program = program or port_program(op)
    differences = []
    for workers, seed in orders:
        graph, copies = sandwich(op, arguments, program.ops)
        schedule = shuffled(graph, workers, seed) if seed else deal(graph, workers, "strided")
        verify(schedule)
        given = {name: array for arrays in copies for name, array in arrays.items()}
        after = run_schedule(program, schedule, given, machine, seed)
        nodes = [node for node in schedule.graph.nodes if node.op == op]
        for number, node in enumerate(nodes):
            got = outputs_of(op, arguments, node.args, after)
            for name, array in wanted.items():
                if array.tobytes() != got[name].tobytes():
                    differences.append(
                        f"{name}: {difference(array, got[name])} (instance {number}, {workers} "
                        f"workers, order {seed})"
                    )
    return differences


def difference(wanted: np.ndarray, got: np.ndarray) -> str:
    """Where the bits of `wanted` [any] and `got` [the same] differ, in words."""
    differs = np.flatnonzero(wanted.view(np.uint8).ravel() != got.view(np.uint8).ravel())
    at = int(differs[0]) // wanted.itemsize
    count = len(set((differs // wanted.itemsize).tolist()))
    return (
        f"{count} elements differ, first [{at}]: {wanted.ravel()[at]} in the original, "
        f"{got.ravel()[at]} in the port"
    )
