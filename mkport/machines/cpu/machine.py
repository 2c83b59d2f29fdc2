"""The CPU machine: one thread a worker, each walking its own record list in compiled code."""

import os
import queue
import threading
from collections.abc import Mapping

import numpy as np

from mkport.compose import Program
from mkport.declare import RECORD
from mkport.errors import UserError
from mkport.machines.cpu.build import build
from mkport.machines.cpu.memory import allocate, place, poison
from mkport.machines.cpu.sync import COUNTER_STRIDE
from mkport.plan import Schedule, is_flagged, signal_of

SPINS = 2000  # looks at a counter before the core is offered to others: a few microseconds


class Stuck(RuntimeError):
    """A step was aborted because a wait ran past its limit. The message is the stuck frontier."""


class CpuMachine:
    """Runs a schedule's steps on threads.

    `tensors` maps names to arrays (bfloat16 as uint16); weights must be given, other tensors are
    allocated when absent and found in `.tensors`. `limit_s` bounds every wait. The schedule must
    have been dealt for the program's ops, in their order. Use as a context manager, or `close`.
    Threads that share a machine take turns. Raises UserError for tensors that do not fit, and for
    a program of other storage types; ValueError for a schedule of other ops.
    """

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        tensors: Mapping[str, np.ndarray],
        limit_s: float = 20.0,
        first_step: int = 0,
    ) -> None:
        opcodes = [op.name for op in schedule.graph.ops]
        if opcodes != [op.name for op in program.ops]:
            raise ValueError(f"the schedule's ops {opcodes} are not the program's")
        if is_flagged(schedule.graph):
            raise ValueError(
                "the schedule has flagged tensors, whose words a CPU's bodies do not await; give "
                "the CPU machine the graph as it was before `flag`."
            )
        _check_storage(program, schedule)
        self.schedule = schedule
        self.built = build(program)
        self.tensors = place(schedule.graph.tensors, tensors)
        self.times: list[np.ndarray] = []  # of the last traced step: int64 [records, 3] a worker
        self._table = np.array([array.ctypes.data for array in self.tensors.values()], np.int64)
        self._lists = [np.ascontiguousarray(records) for records in schedule.lists]
        self._counters = allocate("i32", (max(schedule.counters, 1), COUNTER_STRIDE))
        self._errors = allocate("i32", (1 + schedule.workers, COUNTER_STRIDE))
        arena = max((node.op.arena(node.bound) for node in schedule.graph.nodes), default=0)
        self._arenas = allocate("f32", (schedule.workers, -(-max(arena, 64) // 64) * 16))
        self._limit_ns = int(limit_s * 1e9)
        self._spins = SPINS if schedule.workers <= len(os.sched_getaffinity(0)) else 0
        # looked up once: after a step nothing of this is in the processor's caches
        self._fixed = [self._arguments(worker) for worker in range(schedule.workers)]
        self._step = first_step
        self._set_counters(first_step)
        self._process = os.getpid()
        self._closed = False
        self._unsettled = False  # a step was begun and not ended
        self._turn = threading.Lock()
        self._start_threads()

    def step(self, trace: bool = False) -> None:
        """Runs one step.

        Raises Stuck, naming every worker's place, when a wait runs out, and UserError on a machine
        that is closed or belongs to the process this one was forked from. Whatever else ends it
        (Ctrl-C), the workers have left the step when the exception goes on, and the next step
        starts afresh.
        """
        self._check_usable()
        with self._turn:
            self._check_usable()  # it may have been closed while this thread waited
            if self._unsettled:
                self._settle()
            self._unsettled = True
            try:
                self._run(trace)
            except BaseException:
                self._settle()
                raise
            self._unsettled = False

    def _run(self, trace: bool) -> None:
        self.times = [np.zeros((len(r), 3), np.int64) for r in self._lists] if trace else []
        for inbox in self._inboxes:
            inbox.put(self._step)
        finished = self._work(0, self._step)
        for _ in self._inboxes:
            finished &= self._done.get()
        if not finished:
            raise Stuck(self._frontier())
        self._step += 1

    def _settle(self) -> None:
        """Calls all workers out of the step, wherever it was left, and sets everything to zero.

        How many workers had begun and how many answers were taken is unknown, so each is sent a
        mark, which it hands back after whatever came before it.
        """
        self._errors[0, 0] = 1
        mark = object()
        for inbox in self._inboxes:
            inbox.put(mark)
        missing = len(self._inboxes)
        while missing:
            missing -= self._done.get() is mark
        self._step = 0
        self._set_counters(0)
        self._errors[:] = 0
        self._unsettled = False

    def _check_usable(self) -> None:
        if self._closed:
            raise UserError("The machine is closed, so it runs no more steps. Make a new one.")
        if self._process != os.getpid():
            raise UserError(
                "The machine belongs to another process: its threads stayed there when this "
                "process was forked. Make the machine after the fork, or spawn instead."
            )

    def poison(self) -> None:
        """Fills scratch and outputs with NaN (and impossible indices), arenas too."""
        poison(self.schedule.graph.tensors, self.tensors)
        self._arenas[...] = np.nan

    def close(self) -> None:
        """Ends the worker threads, after the step that another thread may be running."""
        if self._process != os.getpid():
            return  # the threads are not here
        with self._turn:
            self._closed = True
            for inbox in self._inboxes:
                inbox.put(None)
            for thread in self._threads:
                thread.join()
            self._inboxes.clear()
            self._threads.clear()

    def __enter__(self) -> "CpuMachine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _work(self, worker: int, step: int) -> bool:
        before, after = self._fixed[worker]
        trace = self.times[worker].ctypes.data if self.times else 0
        return self.built.run_worker(*before, step, *after, trace)

    def _arguments(self, worker: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What `run_worker` is told in every step: before the step's number, and behind it."""
        records = self._lists[worker]
        before = (
            worker,
            records.ctypes.data,
            len(records),
            self._table.ctypes.data,
            self._counters.ctypes.data,
        )
        arena, errors = self._arenas[worker].ctypes.data, self._errors.ctypes.data
        return before, (arena, self._spins, self._limit_ns, errors)

    def _start_threads(self) -> None:
        """Worker 0 runs in the caller's thread; the others each wait for a step number."""
        others = range(1, self.schedule.workers)
        self._inboxes: list[queue.SimpleQueue] = [queue.SimpleQueue() for _ in others]
        self._done: queue.SimpleQueue = queue.SimpleQueue()
        self._threads: list[threading.Thread] = [
            threading.Thread(target=self._serve, args=(worker, inbox), daemon=True)
            for worker, inbox in zip(others, self._inboxes, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def _serve(self, worker: int, inbox: queue.SimpleQueue) -> None:
        while (order := inbox.get()) is not None:
            self._done.put(self._work(worker, order) if isinstance(order, int) else order)

    def _set_counters(self, steps: int) -> None:
        """Sets every counter to what it holds after `steps` steps."""
        self._counters[:] = 0
        totals = np.zeros(len(self._counters), np.int64)
        for records in self._lists:
            for counter, amount in map(signal_of, records):
                if counter >= 0:
                    totals[counter] += amount
        self._counters[:, 0] = (totals * steps).astype(np.int32)

    def _frontier(self) -> str:
        """Who waits for what, have and need, in words."""
        lines = ["The step was aborted: a wait ran past its limit. Where the workers were:"]
        for worker, (stuck, index, counter, seen, wanted) in enumerate(self._errors[1:, :5]):
            if not stuck:
                continue
            behind = int(np.int32(int(wanted) - int(seen)))
            feeders = [
                self.schedule.graph.nodes[int(record[RECORD["node"].first])].label
                for records in self._lists
                for record in records
                if signal_of(record)[0] == counter
            ]
            source = feeders[0] if feeders else "nobody"
            lines.append(
                f"  {self.schedule.describe(worker, int(index))} waits for counter {counter} "
                f"(signalled by {source}): has {seen}, needs {wanted}, {behind} missing"
            )
        return "\n".join(lines)


def _check_storage(program: Program, schedule: Schedule) -> None:
    """Raises UserError where a weight or the cache is not stored as the program reads it."""
    stored = {"weight": program.weights, "kv": program.cache}
    for node in schedule.graph.nodes:
        for arg in node.op.tensors:
            name, wanted = node.args[arg.name], stored.get(arg.dtype)
            if name is None or wanted is None:
                continue
            found = schedule.graph.tensors[name].dtype
            if found != wanted:
                raise UserError(
                    f"The program reads {wanted}, but the schedule's tensor {name!r} ({node.label}"
                    f", argument {arg.name!r}) is {found}. Compose the program for the types of "
                    "the schedule, or build the schedule for those of the program."
                )
