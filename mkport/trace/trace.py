"""The record of when every task of a step ran. Summaries, pictures and exports live beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mkport.errors import UserError
from mkport.files import replace_file

FORMAT = "mkport-trace-1"
START, READY, END = 0, 1, 2  # columns of Trace.times


@dataclass(frozen=True, eq=False)
class Trace:
    """Times of the n tasks of one step, one row a task.

    The rows of one worker stand in the order in which it ran them; rows of different workers may
    be mixed. All times come from one clock, whose zero means nothing.

    Raises:
        ValueError: a shape or an id does not fit, a task ends before it starts, or two tasks of
            one worker overlap or stand in the wrong order.
    """

    workers: int  # how many workers the machine had, those without a task included
    worker: NDArray[np.int32]  # [n] who ran the task
    record: NDArray[np.int32]  # [n] index of the record in its worker's list
    node: NDArray[np.int32]  # [n] index into nodes
    times: NDArray[np.int64]  # [n, 3] ns: picked up, waits over, signalled
    nodes: tuple[tuple[str, str], ...]  # (label, op name), e.g. ("layer 3 / o_proj", "gemm")
    caption: str  # how the times came about: "measured on ...", "simulated, ..."

    def __post_init__(self) -> None:
        for name, kind in (
            ("worker", np.int32),
            ("record", np.int32),
            ("node", np.int32),
            ("times", np.int64),
        ):
            object.__setattr__(self, name, _frozen(name, getattr(self, name), kind))
        object.__setattr__(self, "nodes", tuple((label, op) for label, op in self.nodes))
        self._check_ids()
        self._check_times()

    @property
    def tasks(self) -> int:
        """How many tasks were recorded."""
        return len(self.worker)

    @property
    def first_ns(self) -> int:
        """When the first task was picked up, on the trace's clock; 0 without tasks."""
        return int(self.times[:, START].min()) if self.tasks else 0

    @property
    def span_ns(self) -> int:
        """From the first task picked up to the last one signalled; 0 without tasks."""
        return int(self.times[:, END].max()) - self.first_ns if self.tasks else 0

    def save(self, path: str | Path) -> None:
        """Write the trace as JSON, whole or not at all.

        Raises:
            UserError: the file cannot be written.
        """
        content = {
            "format": FORMAT,
            "caption": self.caption,
            "workers": self.workers,
            "nodes": [list(node) for node in self.nodes],
            "worker": self.worker.tolist(),
            "record": self.record.tolist(),
            "node": self.node.tolist(),
            "times_ns": self.times.tolist(),
        }
        text = json.dumps(content, separators=(",", ":"))
        replace_file(Path(path), lambda at: at.write_text(text + "\n", encoding="utf-8"))

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace written by `save`.

        Raises:
            UserError: the file is missing, is no trace, or holds times that cannot be.
        """
        again = "Record the trace again with `mkport trace`."
        try:
            content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(
                f"Cannot read the trace {path}: {error.strerror or error}. {again}"
            ) from error
        except ValueError as error:
            raise UserError(f"{path} is not JSON, so it is no trace: {error}. {again}") from error
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise UserError(f"{path} is no trace: its format is {found!r}, not {FORMAT!r}. {again}")
        try:
            return cls(
                workers=content["workers"],
                worker=content["worker"],
                record=content["record"],
                node=content["node"],
                times=np.asarray(content["times_ns"]).reshape(-1, 3),
                nodes=content["nodes"],
                caption=content["caption"],
            )
        except KeyError as error:
            raise UserError(f"The trace {path} lacks the field {error}. {again}") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise UserError(f"The trace {path} is damaged: {error}. {again}") from error

    def _check_ids(self) -> None:
        n = len(self.worker)
        for name in ("record", "node"):
            if getattr(self, name).shape != (n,):
                raise ValueError(f"{name} has {getattr(self, name).shape} entries, worker has {n}")
        if self.times.shape != (n, 3):
            raise ValueError(f"times has shape {self.times.shape}, not ({n}, 3)")
        if type(self.workers) is not int or self.workers < 1:
            raise ValueError(f"workers is {self.workers!r}, not a count of at least 1")
        if not all(isinstance(text, str) for text in (self.caption, *sum(self.nodes, ()))):
            raise ValueError("caption, labels and op names must be strings")
        for name, limit in (("worker", self.workers), ("node", len(self.nodes))):
            ids = getattr(self, name)
            bad = np.flatnonzero((ids < 0) | (ids >= limit))
            if bad.size:
                raise ValueError(f"task {bad[0]}: {name} {ids[bad[0]]} is not in 0..{limit - 1}")
        if n and self.record.min() < 0:
            raise ValueError(f"task {int(self.record.argmin())}: record {self.record.min()} < 0")

    def _check_times(self) -> None:
        backwards = np.flatnonzero((np.diff(self.times, axis=1) < 0).any(axis=1))
        if backwards.size:
            start, ready, end = self.times[backwards[0]]
            raise ValueError(
                f"task {backwards[0]}: start {start}, ready {ready}, end {end} ns do not ascend"
            )
        by_worker = np.argsort(self.worker, kind="stable")
        earlier, later = by_worker[:-1], by_worker[1:]
        same = self.worker[earlier] == self.worker[later]
        for bad, what in (
            (self.record[earlier] >= self.record[later], "are out of order"),
            (self.times[earlier, END] > self.times[later, START], "overlap in time"),
        ):
            at = np.flatnonzero(same & bad)
            if at.size:
                one, two = earlier[at[0]], later[at[0]]
                raise ValueError(
                    f"worker {self.worker[one]}: records {self.record[one]} and "
                    f"{self.record[two]} {what}"
                )


def _frozen(name: str, values: Any, kind: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """A read-only copy of `values` as `kind`, refusing fractions and integers that do not fit."""
    raw = np.asarray(values)
    if raw.size and raw.dtype.kind not in "iu":
        raise ValueError(f"{name} must hold integers, not {raw.dtype}")
    limits = np.iinfo(kind)
    if raw.size and (raw.min() < limits.min or raw.max() > limits.max):
        raise ValueError(f"{name} does not fit in {limits.dtype}")
    copy = raw.astype(kind)
    copy.flags.writeable = False
    return copy
