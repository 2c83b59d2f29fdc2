"""Runs one case through the CUDA source of an op, on the GPU or in the host build."""

import ctypes
import re
from typing import Any, Protocol

import numpy as np

from mkport.compose.cuda import CudaProgram
from mkport.declare import Op
from mkport.declare.case import Case
from mkport.errors import UserError
from mkport.machines.host.build import build, launch
from mkport.machines.host.machine import SHARED_BYTES, HostMachine
from mkport.plan import Schedule, deal
from mkport.testing.blame import blamed, part_of
from mkport.testing.forms import Outputs, graph_of
from mkport.testing.parts import load_part
from mkport.verify import verify

KERNEL = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(')


class Launch(Protocol):
    """What an oracle's `call_standalone_cuda` launches kernels with; `None` is a null pointer."""

    multiprocessors: int
    shared_bytes: int  # of a block, at most

    def __call__(
        self, kernel: str, blocks: int, threads: int, shared_bytes: int, *args: Any
    ) -> None:
        """Runs a kernel of the standalone file to its end, on arrays, ints and floats.

        Raises UserError when a block would need more shared memory than there is.
        """


def check_shared(launch: Launch, kernel: str, shared_bytes: int) -> None:
    """Raises UserError when a block of the kernel would need more shared memory than there is."""
    if shared_bytes > launch.shared_bytes:
        raise UserError(
            f"The kernel {kernel} needs {shared_bytes:,} bytes of shared memory for this shape, "
            f"and a block has {launch.shared_bytes:,} here: it holds whole rows of its inputs. "
            f"Give it rows that are shorter, or a GPU whose blocks have more."
        )


class HostLaunch:
    """Launches in the host build."""

    multiprocessors = 3
    shared_bytes = SHARED_BYTES

    def __init__(self, source: str, seed: int = 0) -> None:
        self.library = build(source, KERNEL.findall(source), ordinary=True)
        self.seed = seed

    def __call__(
        self, kernel: str, blocks: int, threads: int, shared_bytes: int, *args: Any
    ) -> None:
        """See `Launch`."""
        check_shared(self, kernel, shared_bytes)
        waiting = launch(
            self.library, kernel, [_scalar(arg) for arg in args], blocks=blocks, together=1,
            threads=threads, seed=self.seed, shared_bytes=SHARED_BYTES,
        )  # fmt: skip
        assert not waiting, waiting


def _scalar(arg: Any) -> ctypes._SimpleCData:
    if arg is None or isinstance(arg, np.ndarray):
        return ctypes.c_void_p(None if arg is None else arg.ctypes.data)
    return ctypes.c_int32(arg) if isinstance(arg, int) else ctypes.c_float(arg)


class GpuLaunch:
    """Launches on the current GPU: NumPy arrays go there and come back, one that occurs twice once.

    CuPy arrays are used where they are.
    """

    def __init__(self, source: str) -> None:
        from mkport.machines.cuda.gpu import gpu

        self.source = source
        self.multiprocessors, self.shared_bytes = gpu().multiprocessors, gpu().shared_bytes

    def __call__(
        self, kernel: str, blocks: int, threads: int, shared_bytes: int, *args: Any
    ) -> None:
        """See `Launch`."""
        import cupy

        from mkport.machines.cuda.gpu import load

        check_shared(self, kernel, shared_bytes)
        there = {id(a): cupy.asarray(a) for a in args if isinstance(a, np.ndarray)}
        function = load(self.source, kernel)
        function.max_dynamic_shared_size_bytes = shared_bytes
        given = [there.get(id(arg), _gpu_scalar(arg)) for arg in args]
        function((blocks,), (threads,), tuple(given), shared_mem=shared_bytes)
        for arg in args:
            if isinstance(arg, np.ndarray):
                arg[...] = there[id(arg)].get()


def _gpu_scalar(arg: Any) -> Any:
    if arg is None:
        return np.int64(0)
    if isinstance(arg, int):
        return np.int32(arg)
    return np.float32(arg) if isinstance(arg, float) else arg


def standalone_source(op: Op) -> str:
    """The op's standalone CUDA file. Raises UserError when there is none."""
    path = op.folder / "standalone.cu"
    if not path.is_file():
        raise UserError(f"Op {op.name} has no standalone CUDA kernel: {path} is missing.")
    return path.read_text(encoding="utf-8")


def run_standalone(op: Op, case: Case, machine: str, seed: int = 0) -> Outputs:
    """The ordinary CUDA kernel, launched as its author would."""
    case = case.copy()
    source = standalone_source(op)
    start: Launch = HostLaunch(source, seed) if machine == "host" else GpuLaunch(source)
    call = part_of(load_part(op, "oracle"), "call_standalone_cuda", op)
    with blamed(op, "call_standalone_cuda"):
        call(start, case.a)
    return {name: case.arrays[name] for name in case.outputs}


def solo_schedule(
    op: Op, case: Case, program: CudaProgram, workers: int
) -> tuple[Schedule, Outputs]:
    """A megakernel of this op alone, dealt as a GPU wants it: verified schedule and tensors."""
    graph, arrays = graph_of(op, case, program.ops)
    schedule = deal(graph, workers, share="strided")
    verify(schedule)
    return schedule, arrays


def run_solo(
    op: Op, case: Case, program: CudaProgram, machine: str, workers: int, seed: int = 0
) -> Outputs:
    """A megakernel of this op alone; with one worker this is the ported form."""
    schedule, arrays = solo_schedule(op, case, program, workers)
    args = schedule.graph.nodes[0].args
    if machine == "host":
        host = HostMachine(program, schedule, arrays, seed=seed)
        host.step()
        return {name: host.tensors[args[name]] for name in case.outputs}
    from mkport.machines.cuda.machine import CudaMachine

    device = CudaMachine(program, schedule, arrays)
    device.step()
    return {name: device.tensors[args[name]].get() for name in case.outputs}
