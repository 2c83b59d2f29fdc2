"""Runs a check in a process of its own, under a watchdog: no mistake hangs the verb."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mkport.learn.catalogue import Exercise

LIMIT_S = 20.0  # checks take seconds; a busy machine takes longer
TOLD_S = 1.0  # for a process to say where it is before it is ended
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
            errors="replace",
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(AttributeError, ProcessLookupError):
                process.send_signal(signal.SIGUSR1)
                time.sleep(TOLD_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            told = f"NO  nothing after {limit_s:.0f} s: does a loop never end, or a wait never?"
            lines = (told, *_where(out, file))
            return Outcome(exercise.name, "hung", lines, time.perf_counter() - started)
        seconds = time.perf_counter() - started
        said = tuple(f"    you printed: {line[:200]}" for line in printed.splitlines()[-20:])
        if not out.is_file():
            lines = (*said, f"NO  {_ending(process.returncode)}", *_where(out, file))
            return Outcome(exercise.name, "crashed", lines, seconds)
        found = json.loads(out.read_text(encoding="utf-8"))
    score = None if found["score"] is None else tuple(found["score"])
    lines = (*said, *found["lines"])
    return Outcome(exercise.name, found["state"], lines, seconds, found["cpu_s"], score)


def _ending(code: int) -> str:
    """How a process ended that has said nothing."""
    if code >= 0:
        return f"your code ended the check's process, with code {code}"
    with contextlib.suppress(ValueError):
        return f"the check's process crashed: {signal.Signals(-code).name}"
    return f"the check's process crashed: signal {-code}"


def _where(out: Path, file: Path) -> list[str]:
    """The learner's lines in which Python was at last, the innermost first."""
    told = Path(f"{out}.where")
    if not told.is_file():
        return []
    found = re.findall(r'File "(.*?)", line (\d+) in (.*)', told.read_text(encoding="utf-8"))
    lines = [(line, name) for path, line, name in found if Path(path) == file]
    return [f"    it was at line {line}, in {name}" for line, name in lines[:2]]
