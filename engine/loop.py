"""The engine's thread: the core's rounds happen in it, and everybody else reaches them through its
inbox. It knows when the engine takes requests, when it drains, and that it has died; what a round
does is the core's business, what a request is the engine's."""

import math
import queue
import threading
import time
from collections.abc import Collection
from typing import Literal

from mkport.engine.core import Core
from mkport.engine.job import Job
from mkport.engine.request import QueueFull, Stats
from mkport.engine.runner import Runner
from mkport.trace import Trace

IDLE_S = 0.5  # the loop comes round at least so often

Order = tuple[Literal["add", "cancel", "reset", "close"], Job | None]


class Loop:
    """Runs a core until it is closed. `max_waiting` requests may wait to begin. Every method but
    `_run` and what it calls is safe from any thread."""

    def __init__(self, runner: Runner, eos: Collection[int], max_waiting: int) -> None:
        self.core = Core(runner, eos)
        self.state: Literal["open", "draining", "closed", "dead"] = "open"
        self.context, self.max_batch = runner.limits.context, runner.limits.sequences
        self.waiting = 0  # requests that have not begun
        self._max_waiting = max_waiting
        self._lock = threading.Lock()  # over `state` and `waiting`
        self._inbox: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._deadline = math.inf  # of draining
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def add(self, job: Job) -> None:
        """Queues a job. Raises QueueFull when too many wait, or no more are taken."""
        with self._lock:
            if self.state != "open" or self.waiting >= self._max_waiting:
                raise QueueFull()
            self.waiting += 1
            self._inbox.put(("add", job))

    def cancel(self, job: Job) -> None:
        """Ends a job in whatever state it is."""
        self._inbox.put(("cancel", job))

    def reset_prefix_cache(self) -> None:
        """Forgets what prompts have left behind."""
        self._inbox.put(("reset", None))

    def stats(self) -> Stats:
        """Counters and gauges."""
        return self.core.stats()

    def timeline(self) -> Trace | None:
        """The last step that was traced; the next one will be."""
        self.core.wants_trace = True
        return self.core.trace

    def heartbeat_s(self) -> float:
        """Seconds since the loop last came round; infinite when it has ended."""
        return time.monotonic() - self._beat if self._thread.is_alive() else math.inf

    def close(self, drain_s: float) -> None:
        """Ends the loop: nothing new is taken, what is there may go on for `drain_s` seconds."""
        with self._lock:
            if self.state == "open":
                self.state = "draining"
        self._deadline = min(self._deadline, time.monotonic() + drain_s)
        self._inbox.put(("close", None))  # so that it wakes
        self._thread.join()

    def _run(self) -> None:
        core = self.core
        try:
            while self._goes_on():
                self._beat = time.monotonic()
                self._read(wait=not core.scheduler.busy)
                if core.scheduler.busy:
                    self._began(core.step())
            self._read(wait=False)
            for job in core.jobs:
                core.cancel(job)
            core.settle()
            core.scheduler.check_idle()
            self._end("closed", "The engine is closed.")
        except BaseException as error:
            self._end("dead", f"The engine has died: {error}")
            raise
        finally:
            core.runner.close()

    def _goes_on(self) -> bool:
        if self.state == "open":
            return True
        idle = not self.core.scheduler.busy and self._inbox.empty()
        return not idle and time.monotonic() < self._deadline

    def _read(self, wait: bool) -> None:
        """Does what is in the inbox, after a wait for the first order if there is nothing else to
        do."""
        if wait:
            try:
                self._do(self._inbox.get(timeout=IDLE_S))
            except queue.Empty:
                return
        while not self._inbox.empty():  # nobody else takes from it
            self._do(self._inbox.get_nowait())

    def _do(self, order: Order) -> None:
        what, job = order
        if what == "add" and job is not None:
            self.core.add(job)
        elif what == "cancel" and job is not None:
            self.core.cancel(job)
            self._began([job] if job.queued else [])
            job.queued = False
        elif what == "reset":
            self.core.scheduler.holdings.cache.reset()

    def _began(self, jobs: list[Job]) -> None:
        """These requests no longer wait."""
        if jobs:
            with self._lock:
                self.waiting -= len(jobs)

    def _end(self, state: Literal["closed", "dead"], message: str) -> None:
        """Ends with an error whatever is left, in the core and in the inbox."""
        with self._lock:
            self.state = state  # from here on nothing comes in
        while True:
            try:
                order, job = self._inbox.get_nowait()
            except queue.Empty:
                break
            if order == "add" and job is not None:
                self.core.add(job)
        self.core.fail(message)
