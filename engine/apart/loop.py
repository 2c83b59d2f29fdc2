"""The server's side of an engine in a process of its own: it has the methods of `Loop`, sends
orders, and hands the events that come back to their streams. What happens over there is `child`'s
business."""

import contextlib
import math
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from typing import Any, Literal

from mkport.engine.build import Built
from mkport.engine.job import Job
from mkport.engine.request import Event, QueueFull, Stats
from mkport.engine.stream import EventStream, wake
from mkport.errors import UserError
from mkport.trace import Trace

CLOSE_S = 60.0  # that the other process may take to end, after it has drained
PROTOCOL = pickle.HIGHEST_PROTOCOL
Build = Callable[..., Built]


class ApartLoop:
    """Starts a process in which `build(**options)` makes what is run, and its loop.

    `build` is found by its name there. Safe from any thread. Raises UserError for what `build`
    refuses, RuntimeError when it fails otherwise.
    """

    def __init__(self, build: Build, options: Mapping[str, Any], max_waiting: int) -> None:
        self.state: Literal["open", "closed", "dead"] = "open"
        self.waiting = 0  # requests without an event
        self._max_waiting = max_waiting
        self._lock = threading.Lock()  # over `state`, `waiting`, `_jobs` and what is sent
        self._jobs: dict[int, tuple[Job, set[int]]] = {}  # by number: its choices that go on
        self._begun: set[int] = set()
        self._keys: dict[EventStream, int] = {}
        self._count = 0
        self._stats, self._trace = Stats(), None  # type: tuple[Stats, Trace | None]
        self._age, self._heard = 0.0, time.monotonic()  # the loop's heartbeat, and when it came
        self._pipe, self._process = _started()
        self._send(("build", build, dict(options)))
        said, about = self._receive()
        if said != "built":
            self._process.wait()
            raise UserError(about) if said == "refused" else RuntimeError(about)
        self.context: int = about["context"]
        self.max_batch: int = about["max_batch"]
        self.name: str = about["name"]
        self._reader = threading.Thread(target=self._read, name="engine events", daemon=True)
        self._reader.start()

    def add(self, job: Job) -> None:
        """Queues a job. Raises QueueFull when too many wait, or no more are taken."""
        with self._lock:
            if self.state != "open" or self.waiting >= self._max_waiting:
                raise QueueFull()
            self.waiting += 1
            self._count += 1
            key, n = self._count, len(job.choices)
            self._jobs[key] = job, set(range(n))
            self._keys[job.stream] = key
            sampling = replace(job.sampling, seed=job.choices[0].sampler.seed)
            self._order(("add", key, job.prompt, sampling, n))

    def cancel(self, job: Job) -> None:
        """Ends a job in whatever state it is."""
        with self._lock:
            key = self._keys.get(job.stream)
            if key is not None:
                self._order(("cancel", key))

    def reset_prefix_cache(self) -> None:
        """Forgets what prompts have left behind."""
        with self._lock:
            self._order(("reset",))

    def stats(self) -> Stats:
        """Counters and gauges, of the last step or a quarter of a second ago."""
        return self._stats

    def timeline(self) -> Trace | None:
        """The last trace that has come; another one is asked for."""
        with self._lock:
            self._order(("trace",))
        return self._trace

    def heartbeat_s(self) -> float:
        """Seconds since the loop last came round; infinite when it or its process has ended."""
        return self._age + time.monotonic() - self._heard if self.state == "open" else math.inf

    def close(self, drain_s: float) -> None:
        """Ends the loop and its process: nothing new is taken, what is there may go on for
        `drain_s` seconds."""
        with self._lock:
            was, self.state = self.state, "closed" if self.state == "open" else self.state
            if was == "open":
                self._order(("close", drain_s))
        try:
            self._process.wait(drain_s + CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def _order(self, message: tuple[Any, ...]) -> None:
        """Sends, with the lock held; a process that has ended is the reader's business."""
        with contextlib.suppress(OSError):
            self._send(message)

    def _send(self, message: tuple[Any, ...]) -> None:
        self._pipe.send_bytes(pickle.dumps(message, PROTOCOL))

    def _receive(self) -> Any:
        try:
            return pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return "failed", f"The engine's process has ended, exit code {self._process.wait()}."

    def _read(self) -> None:
        """What comes back, until the process ends."""
        while True:
            kind, *what = self._receive()
            self._heard = time.monotonic()
            if kind == "events":
                news, self._stats = what
                self._age = 0.0
                self._tell(news)
            elif kind == "beat":
                self._age, self._stats = what
            elif kind == "trace":
                (self._trace,) = what
            else:
                self._gone(str(what[0]))
                return

    def _tell(self, news: list[tuple[int, Any, list[tuple[Any, ...]]]]) -> None:
        """Puts events into their streams."""
        told: list[EventStream] = []
        for key, accepted, events in news:
            with self._lock:
                job, going = self._jobs[key]
                if key not in self._begun:
                    self._begun.add(key)
                    self.waiting -= 1
                stream = job.stream
                if accepted is not None:
                    stream.accepted = accepted
                for fields in events:
                    event = Event(*fields)
                    stream.put(event)
                    if event.reason is not None:
                        going.discard(event.choice)
                if not going:
                    del self._jobs[key], self._keys[stream]
                    self._begun.discard(key)
            told.append(stream)
        wake(told)

    def _gone(self, message: str) -> None:
        """Ends with an error whatever is left."""
        with self._lock:
            if self.state == "open":
                self.state = "dead"
            left = list(self._jobs.values())
            self._jobs.clear()
            self._keys.clear()
        for job, going in left:
            for choice in sorted(going):
                job.stream.put(Event(choice, reason="error", error=message))
        wake(job.stream for job, _ in left)


def _started() -> tuple[Connection, subprocess.Popen[bytes]]:
    """The process, and this end of the pipe to it. It ends when the pipe does, and signals from the
    terminal do not reach it: how to end is said by this one."""
    here, there = Pipe()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-m", "mkport.engine.apart.child", str(there.fileno())],
        env=environment,
        pass_fds=[there.fileno()],
        start_new_session=True,
    )
    there.close()
    return here, process
