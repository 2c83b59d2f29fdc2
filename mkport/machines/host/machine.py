"""The host machine: a composed CUDA file run on a CPU, one step at a time, in seeded orders."""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from mkport.compose.cuda import CudaProgram
from mkport.compose.cuda_constants import CONSTANTS
from mkport.machines.cpu.machine import Stuck
from mkport.machines.cpu.memory import place, poison
from mkport.machines.cuda.abort import error_block, frontier
from mkport.machines.cuda.layout import shared_of
from mkport.machines.cuda.maps import matrices
from mkport.machines.cuda.records import (
    UNWRITTEN,
    check_ops,
    counters_after,
    flagged_names,
    flatten,
)
from mkport.machines.host.build import build, launch
from mkport.plan import Schedule

SHARED_BYTES = 232448  # of a block, as on sm_90: 227 KiB
THREADS = (CONSTANTS["COMPUTE_WARPS"] + CONSTANTS["STAGE_WARPS"] + 2) * 32


class HostMachine:
    """Runs a schedule's steps through the CUDA source, its workers interleaved at random.

    `tensors` as for the CPU machine: arrays by name, bfloat16 as uint16; what is absent is
    allocated and found in `.tensors`. Step s is stepped in an order that follows from `seed` and
    s alone. `shared_bytes` is a block's shared memory, so that small devices can be played.
    """

    def __init__(
        self,
        program: CudaProgram,
        schedule: Schedule,
        tensors: Mapping[str, np.ndarray],
        *,
        seed: int = 0,
        first_step: int = 0,
        shared_bytes: int = SHARED_BYTES,
        sanitize: str = "",
    ) -> None:
        check_ops(program, schedule)
        self.schedule = schedule
        self.shared = shared_of(program, schedule, shared_bytes)
        self.library = self._built(program.source, sanitize)
        self.tensors = place(schedule.graph.tensors, tensors)
        self.times: list[np.ndarray] = []  # of the last traced step: int64 [records, 3] a worker
        self.seed = seed
        self._table = np.array([array.ctypes.data for array in self.tensors.values()], np.int64)
        self._maps = maps_of(self.tensors, schedule)
        self._records, self._firsts = flatten(program, schedule, self.shared)
        self._counters = counters_after(schedule, first_step)
        self._errors = np.zeros(error_block(schedule), np.int32)
        self._step = first_step
        self._flagged = [self.tensors[name] for name in flagged_names(schedule)]

    def _built(self, source: str, sanitize: str) -> Any:
        return build(source, ["megakernel"], sanitize)

    def step(self, trace: bool = False) -> None:
        """Runs one step.

        Raises Stuck, naming every worker's place, when nothing can move any more, and HostFault
        for slips that a GPU would not survive.
        """
        for array in self._flagged:
            array.view(np.int32)[...] = UNWRITTEN
        times = np.zeros((len(self._records) if trace else 0, 3), np.int64)
        waiting = self._launched(times)
        if waiting:
            message = frontier(self.schedule, self._errors)
            self._errors[:] = 0
            self._counters[:] = 0
            self._step = 0
            raise Stuck(f"{message}\nThreads that could not move:\n{waiting}")
        self.times = np.split(times, self._firsts[1:-1]) if trace else []
        self._step += 1

    def _launched(self, times: np.ndarray) -> str:
        """Runs the kernel once: "", or what its threads waited for when none could move."""
        pointers = (
            self._records, self._firsts, self._table, self._maps, self._counters, self._errors,
            times,
        )  # fmt: skip
        records, firsts, table, maps, counters, errors, stamps = (
            ctypes.c_void_p(array.ctypes.data if array.size else None) for array in pointers
        )
        args = (
            records, firsts, table, ctypes.c_int32(len(self._table)), maps, counters, errors,
            stamps, ctypes.c_int64(0), ctypes.c_int32(self._step & 0xFFFFFFFF),
            ctypes.c_int32(self.shared.stage), ctypes.c_int32(self.shared.ring),
        )  # fmt: skip
        return launch(
            self.library, "megakernel", args,
            blocks=self.schedule.workers, together=self.schedule.workers, threads=THREADS,
            seed=self._order(), shared_bytes=self.shared.nbytes,
        )  # fmt: skip

    def _order(self) -> int:
        return self.seed * 1_000_003 + self._step

    def close(self) -> None:
        """There is nothing to end."""

    def poison(self) -> None:
        """Fills scratch and outputs with NaN and impossible indices."""
        poison(self.schedule.graph.tensors, self.tensors)


def maps_of(tensors: Mapping[str, np.ndarray], schedule: Schedule) -> np.ndarray:
    """What the host build's copies are told of each tensor: int64 [tensors, MAP_BYTES / 8]."""
    maps = np.zeros((len(tensors), CONSTANTS["MAP_BYTES"] // 8), np.int64)
    known = matrices(schedule)
    for number, name in enumerate(schedule.graph.tensors):
        if name in known:
            matrix = known[name]
            sizes = matrix.rows, matrix.row_bytes, matrix.blocks, matrix.copied
            maps[number, :5] = tensors[name].ctypes.data, *sizes
    return maps
