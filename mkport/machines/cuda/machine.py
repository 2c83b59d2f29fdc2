"""The CUDA machine: one persistent kernel launch a step, a resident block for each worker."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mkport.compose.cuda import CudaProgram
from mkport.compose.cuda_constants import CONSTANTS
from mkport.declare import TensorSpec
from mkport.errors import UserError
from mkport.machines.cpu import memory
from mkport.machines.cpu.machine import Stuck
from mkport.machines.cuda.abort import error_block, frontier
from mkport.machines.cuda.gpu import fill_words, gpu, load
from mkport.machines.cuda.layout import shared_of
from mkport.machines.cuda.maps import tensor_maps
from mkport.machines.cuda.records import (
    UNWRITTEN,
    check_ops,
    counters_after,
    flagged_names,
    flatten,
)
from mkport.plan import Schedule

FLAGGED_ALIGN = 256  # bytes, of a flagged tensor
THREADS = (CONSTANTS["COMPUTE_WARPS"] + CONSTANTS["STAGE_WARPS"] + 2) * 32


class CudaMachine:
    """Runs a schedule's steps on the current GPU.

    `tensors` maps names to NumPy or CuPy arrays (bfloat16 as uint16); CuPy arrays are used where
    they are, NumPy arrays are copied. What is absent, and no weight, is allocated. `.tensors`
    holds the CuPy arrays. `limit_s` bounds every wait. Raises UserError when there is no fit GPU
    or not every worker can be resident.
    """

    def __init__(
        self,
        program: CudaProgram,
        schedule: Schedule,
        tensors: Mapping[str, Any],
        limit_s: float = 2.0,
        first_step: int = 0,
    ) -> None:
        here = gpu()  # before CuPy is imported: it says what is missing
        import cupy

        check_ops(program, schedule)
        self.schedule = schedule
        self.shared = shared_of(program, schedule, here.shared_bytes)
        self.kernel = load(program.source, "megakernel", cooperative=True)
        self.kernel.max_dynamic_shared_size_bytes = self.shared.nbytes
        self._check_residency()
        self._flagged, flagged = _flagged(schedule)
        self.tensors = place(schedule.graph.tensors, {**tensors, **flagged})
        self.times: list[np.ndarray] = []  # of the last traced step: int64 [records, 3] a worker
        records, self._firsts = flatten(program, schedule, self.shared)
        self._trace = cupy.zeros((len(records), 3), np.int64)
        self._records, self._first = cupy.asarray(records), cupy.asarray(self._firsts)
        self._table = cupy.asarray([a.data.ptr for a in self.tensors.values()], np.int64)
        self._maps = tensor_maps(schedule, self.tensors)
        self._counters = cupy.asarray(counters_after(schedule, first_step))
        self._errors = cupy.zeros(error_block(schedule), np.int32)
        self._limit_ns = int(limit_s * 1e9)
        self._step = first_step

    def step(self, trace: bool = False) -> None:
        """Runs one step and waits for its end. Raises Stuck when a wait ran out."""
        self.launch(trace)
        self.check()
        times = np.split(self._trace.get(), self._firsts[1:-1]) if trace else []
        self.times = [one_after_another(t) for t in times]

    def launch(self, trace: bool = False) -> None:
        """Queues one step on the current stream; `check` must follow, after one or more."""
        if self._flagged.size:
            fill_words(self._flagged, UNWRITTEN)
        self.kernel(
            (self.schedule.workers,),
            (THREADS,),
            (
                self._records, self._first, self._table, np.int32(len(self._table)),
                self._maps, self._counters, self._errors, self._trace if trace else np.int64(0),
                np.int64(self._limit_ns), np.uint32(self._step & 0xFFFFFFFF).astype(np.int32),
                np.int32(self.shared.stage), np.int32(self.shared.ring),
            ),
            shared_mem=self.shared.nbytes,
        )  # fmt: skip
        self._step += 1

    def check(self) -> None:
        """Waits for the queued steps. Raises Stuck, naming every worker's place, if one ended so.

        The counters then start again from zero.
        """
        if int(self._errors[0, 0].get()) == 0:
            return
        message = frontier(self.schedule, self._errors.get())
        self._errors[...] = 0
        self._counters[...] = 0
        self._step = 0
        raise Stuck(message)

    def close(self) -> None:
        """There is nothing to end: the memory is freed with the arrays."""

    @property
    def abort_flag(self) -> Any:
        """The device's abort flag, CuPy int32 [1]: not 0 once a step was aborted."""
        return self._errors[0, :1]

    def poison(self) -> None:
        """Fills scratch and outputs with NaN and impossible indices."""
        memory.poison(self.schedule.graph.tensors, self.tensors)

    def _check_residency(self) -> None:
        from cupy_backends.cuda.api import driver

        here = gpu()
        blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(
            self.kernel.kernel.ptr, THREADS, self.shared.nbytes
        )
        room = blocks * here.multiprocessors
        if self.schedule.workers > room:
            raise UserError(
                f"The schedule has {self.schedule.workers} workers, but {here.name} keeps {room} "
                "blocks of this kernel resident at once, and a step waits for all its workers: "
                f"deal it to {room} workers or fewer."
            )


def _flagged(schedule: Schedule) -> tuple[Any, dict[str, Any]]:
    """The memory of all flagged tensors, CuPy uint8 [bytes], and their arrays in it."""
    import cupy

    specs = [schedule.graph.tensors[name] for name in flagged_names(schedule)]
    ends = np.cumsum([0, *(-(-spec.nbytes // FLAGGED_ALIGN) * FLAGGED_ALIGN for spec in specs)])
    block = cupy.empty(int(ends[-1]), np.uint8)
    arrays = {
        spec.name: block[at : at + spec.nbytes].view(memory.NUMPY[spec.dtype]).reshape(spec.shape)
        for spec, at in zip(specs, map(int, ends[:-1]), strict=True)
    }
    return block, arrays


def one_after_another(times: np.ndarray) -> np.ndarray:
    """A worker's times as a lane shows them: int64 [records, 3] (start, ready, end) in ns.

    Its roles work on neighbouring records at once, and the clock ticks coarsely; here a record
    begins no earlier than the one before it ended.
    """
    flat = np.maximum.accumulate(times[:, 2])
    starts = np.maximum(times[:, 0], np.concatenate([times[:1, 0], flat[:-1]]))
    readies = np.maximum(times[:, 1], starts)
    return np.stack([starts, readies, np.maximum(flat, readies)], axis=1)


def place(specs: Mapping[str, TensorSpec], given: Mapping[str, Any]) -> dict[str, Any]:
    """Every tensor's CuPy array: those given, checked against the table; the rest allocated.

    Raises UserError as the CPU's does, and for an address that is no multiple of 16.
    """
    import cupy

    arrays = memory.place(
        specs, given, lambda dtype, shape: cupy.zeros(shape, memory.NUMPY[dtype]), cupy.asarray
    )
    for name, array in arrays.items():
        if array.data.ptr % 16:
            raise UserError(f"Tensor {name!r} does not begin at a multiple of 16 bytes.")
    return arrays
