"""The decode benchmark: contestants in turns, round by round, on the same weights and prompt.

Nothing is timed before it was compared: the logits after the first prompt must be the first
contestant's but for rounding (`LOGITS_OFF`), or the run is refused. Greedy continuations may part
at a near-tie; how long they are the same is told.
"""

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import mkport
from mkport.bandwidth import read_bandwidth
from mkport.doctor import cpu_model
from mkport.errors import UserError

# What a run may hold beside weights and cache: Python, Numba with its compiled code, scratch.
BESIDE = 350e6
LOGITS_OFF = 0.1  # bfloat16 activations differ by 0.01 to 0.05, another model by more than 1


@dataclass
class Result:
    """One contestant's samples, and what it computed."""

    name: str
    versions: dict[str, str]
    tokens_per_second: list[float] = field(default_factory=list)  # [rounds] of the whole batch
    logits_off: float = 0.0  # root mean square difference to the first's, over their deviation
    same_tokens: int = 0  # greedy ids shared with the first, up to the first that differs
    compared: int = 0
    peak_bytes: int = 0

    @property
    def median(self) -> float:
        """The middle sample, in tokens a second."""
        return median(self.tokens_per_second)


@dataclass
class Report:
    """What a run measured, and on what."""

    machine: str
    python: str
    commit: str
    threads: int
    batch: int
    prompt_tokens: int
    tokens: int
    step_bytes: float  # that a decode step must read, with uniform routing
    held_bytes: float  # weights and cache
    read_bandwidth: list[float]  # [rounds] bytes a second
    host_share: float  # of the first contestant's step, spent outside the workers: 0 to 1
    results: list[Result]

    def as_dict(self) -> dict[str, Any]:
        """Every sample, for the JSON file."""
        return asdict(self)


class Child:
    """A contestant's process. Raises UserError, with its words, when it cannot run here."""

    def __init__(self, name: str, setup: dict[str, Any]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mkport.engine.bench.child", json.dumps(setup | {"name": name})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.versions: dict[str, str] = self._read().get("versions", {})

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer. Raises UserError when the process fails."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(timeout=30)

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        answer = json.loads(line) if line.startswith("{") else {"error": "its process ended"}
        if "error" in answer:
            self.process.kill()
            raise UserError(f"The contestant {self.name} cannot run: {answer['error']}")
        return answer


def run(
    names: list[str],
    directory: Path,
    gguf: Path | None,
    prompts: list[list[int]],
    step_bytes: float,
    weight_bytes: float,
    cache_bytes_per_token: float,
    *,
    threads: int,
    tokens: int = 64,
    rounds: int = 7,
    advance: Callable[[float], None] = lambda amount: None,
) -> Report:
    """Runs the benchmark on `prompts` [prompts][ids], all of one length; `advance` is called once a
    contestant and round.

    `step_bytes` is what a decode step must read; the cache holds the context of every prompt.
    Raises UserError for a contestant that cannot run here or whose logits are another model's.
    """
    context = -(-(len(prompts[0]) + tokens + 1) // 256) * 256
    setup = {
        "directory": str(directory),
        "gguf": str(gguf) if gguf else "",
        "threads": threads,
        "batch": len(prompts),
        "context": context,
    }
    children: list[Child] = []
    try:
        for name in names:
            children.append(Child(name, setup))
        results = [Result(child.name, child.versions) for child in children]
        first = children[0].ask(what="decode", prompts=prompts, tokens=tokens)["ids"]
        logits = children[0].ask(what="logits", prompt=prompts[0])["logits"]
        for child, result in zip(children, results, strict=True):
            ids = child.ask(what="decode", prompts=prompts, tokens=tokens)["ids"]
            result.logits_off = _off(logits, child.ask(what="logits", prompt=prompts[0])["logits"])
            if not result.logits_off <= LOGITS_OFF:
                raise UserError(
                    f"The contestants {names[0]} and {child.name} do not compute the same: their "
                    f"logits differ by {result.logits_off:.3f} of their size, so nothing was timed."
                )
            result.compared = tokens * len(prompts)
            result.same_tokens = sum(map(_shared, ids, first))
        bandwidth = []
        for _ in range(rounds):
            bandwidth.append(read_bandwidth(threads, rounds=3))
            for child, result in zip(children, results, strict=True):
                answer = child.ask(what="decode", prompts=prompts, tokens=tokens)
                result.tokens_per_second.append(len(prompts) * tokens / answer["seconds"])
                advance(1)
        share = children[0].ask(what="host_share", prompts=prompts, tokens=tokens)["host_share"]
        for child, result in zip(children, results, strict=True):
            result.peak_bytes = child.ask(what="peak")["peak_bytes"]
    finally:
        for child in children:
            child.close()
    return Report(
        machine=f"{cpu_model()}, {threads} threads",
        python=platform.python_version(),
        commit=commit(),
        threads=threads,
        batch=len(prompts),
        prompt_tokens=len(prompts[0]),
        tokens=tokens,
        step_bytes=step_bytes,
        held_bytes=weight_bytes + cache_bytes_per_token * context * len(prompts),
        read_bandwidth=bandwidth,
        host_share=share,
        results=results,
    )


def table(report: Report) -> str:
    """The report as a Markdown table, with what it was measured on."""
    bandwidth = median(report.read_bandwidth)
    bound = report.batch * bandwidth / report.step_bytes
    first = report.results[0]
    limit = report.held_bytes + BESIDE
    lines = [
        f"Decode at batch {report.batch} on {report.machine}, {report.tokens} tokens after a "
        f"prompt of {report.prompt_tokens}, {len(first.tokens_per_second)} rounds in turns; Python "
        f"{report.python}, commit {report.commit}.",
        "",
        f"Read bandwidth in the same run: {bandwidth / 1e9:.1f} GB/s; a step reads "
        f"{report.step_bytes / 1e6:.0f} MB, so the bound is {bound:.1f} tokens/s. "
        f"Time of a step outside the workers: {100 * report.host_share:.1f} %.",
        "",
        f"Peak memory of {first.name}: {first.peak_bytes / 1e6:.0f} MB, "
        f"{'within' if first.peak_bytes <= limit else 'ABOVE'} {limit / 1e6:.0f} MB: "
        f"{report.held_bytes / 1e6:.0f} MB of weights and cache, {BESIDE / 1e6:.0f} MB for the "
        f"rest.",
        "",
        "| | tokens/s, median | all rounds | of the bound | ours is | logits off "
        "| same tokens | memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in report.results:
        versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        spread = f"{min(result.tokens_per_second):.1f}-{max(result.tokens_per_second):.1f}"
        lines.append(
            f"| {result.name} ({versions}) | {result.median:.1f} | {spread} "
            f"| {100 * result.median / bound:.0f} % | {first.median / result.median:.2f}x "
            f"| {100 * result.logits_off:.1f} % | {result.same_tokens} of {result.compared} "
            f"| {result.peak_bytes / 1e6:.0f} MB |"
        )
    return "\n".join(lines) + "\n"


def _off(first: list[float], other: list[float]) -> float:
    """Root mean square difference of two rows of logits, over the first's deviation."""
    a, b = np.array(first), np.array(other)
    return float(np.sqrt(np.mean((a - b) ** 2)) / np.std(a))


def _shared(ids: list[int], first: list[int]) -> int:
    """How many ids two continuations share before the first that differs."""
    pairs = enumerate(zip(ids, first, strict=True))
    return next((n for n, (a, b) in pairs if a != b), len(ids))


def commit() -> str:
    """The commit of the source, or the version where there is no repository."""
    folder = Path(mkport.__file__).resolve().parent
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=folder, capture_output=True, text=True
    )
    return done.stdout.strip() or mkport.__version__
