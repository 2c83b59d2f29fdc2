"""Runs a check in a process of its own, under a watchdog: no mistake hangs the verb."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mkport.learn.catalogue import Exercise

LIMIT_S = 30.0  # checks take seconds; a busy machine takes longer
State = Literal["passed", "failed", "blank", "skipped", "hung", "crashed"]


@dataclass(frozen=True)
class Outcome:
    """What a check found. `score` is (value, unit, to beat, beaten), None where there is none."""

    exercise: str
    state: State
    lines: tuple[str, ...]
    seconds: float
    cpu_s: float = 0.0
    score: tuple[float, str, float, bool] | None = None

    @property
    def ok(self) -> bool:
        """Solved, or not to be checked here."""
        return self.state in ("passed", "skipped")


def check(exercise: Exercise, file: Path, limit_s: float = LIMIT_S) -> Outcome:
    """The outcome of a learner's file; the process is ended after `limit_s` seconds."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcome.json"
        command = [sys.executable, "-m", "mkport.learn.child"]
        process = subprocess.Popen(
            [*command, str(exercise.judge), str(file), str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            told = f"NO  nothing after {limit_s:.0f} s: does a loop never end, or a wait never?"
            return Outcome(exercise.name, "hung", (told,), time.perf_counter() - started)
        seconds = time.perf_counter() - started
        said = tuple(f"    you printed: {line}" for line in printed.splitlines()[-20:])
        if not out.is_file():
            told = f"NO  the check's process ended with code {process.returncode}"
            return Outcome(exercise.name, "crashed", (*said, told), seconds)
        found = json.loads(out.read_text(encoding="utf-8"))
    score = None if found["score"] is None else tuple(found["score"])
    lines = (*said, *found["lines"])
    return Outcome(exercise.name, found["state"], lines, seconds, found["cpu_s"], score)
