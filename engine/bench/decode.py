"""The decode benchmark: contestants in turns, round by round, on the same weights and prompt.

Nothing is timed before its tokens were compared: a contestant whose greedy continuation leaves
the first contestant's is reported with the length of what they share, since near-ties may fall
either way in bfloat16.
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

import mkport
from mkport.bandwidth import read_bandwidth
from mkport.doctor import cpu_model
from mkport.errors import UserError


@dataclass
class Result:
    """One contestant's samples: decode steps a second, one a round."""

    name: str
    versions: dict[str, str]
    tokens_per_second: list[float] = field(default_factory=list)
    same_tokens: int = (
        0  # greedy ids shared with the first contestant before the first that differs
    )
    compared: int = 0
    peak_bytes: int = 0

    @property
    def median(self) -> float:
        """The middle sample."""
        return median(self.tokens_per_second)


@dataclass
class Report:
    """What a run measured, and on what."""

    machine: str
    python: str
    commit: str
    threads: int
    prompt_tokens: int
    tokens: int
    weight_bytes: int  # a decode step reads each once
    read_bandwidth: list[float]  # bytes a second, one a round
    host_share: float
    results: list[Result]

    def as_dict(self) -> dict[str, Any]:
        """Every sample, for the JSON file."""
        return asdict(self)


class Child:
    """A contestant's process."""

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
        """Sends a request and waits for its answer."""
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
    prompt: list[int],
    weight_bytes: int,
    *,
    threads: int,
    tokens: int = 64,
    rounds: int = 7,
    advance: Callable[[float], None] = lambda amount: None,
) -> Report:
    """Runs the benchmark; `advance` is called once a contestant and round."""
    context = len(prompt) + tokens + 1
    setup = {
        "directory": str(directory),
        "gguf": str(gguf) if gguf else "",
        "threads": threads,
        "context": -(-context // 256) * 256,
    }
    children: list[Child] = []
    try:
        for name in names:
            children.append(Child(name, setup))
        results = [Result(child.name, child.versions) for child in children]
        first = children[0].ask(what="decode", prompt=prompt, tokens=tokens)["ids"]
        for child, result in zip(children, results, strict=True):
            ids = child.ask(what="decode", prompt=prompt, tokens=tokens)["ids"]
            differing = (
                n for n, pair in enumerate(zip(ids, first, strict=True)) if len(set(pair)) > 1
            )
            result.compared, result.same_tokens = tokens, next(differing, tokens)
        bandwidth = []
        for _ in range(rounds):
            bandwidth.append(read_bandwidth(threads, rounds=3))
            for child, result in zip(children, results, strict=True):
                answer = child.ask(what="decode", prompt=prompt, tokens=tokens)
                result.tokens_per_second.append(tokens / answer["seconds"])
                advance(1)
        share = children[0].ask(what="host_share", prompt=prompt, tokens=tokens)["host_share"]
        for child, result in zip(children, results, strict=True):
            result.peak_bytes = child.ask(what="peak")["peak_bytes"]
    finally:
        for child in children:
            child.close()
    return Report(
        machine=f"{cpu_model()}, {threads} threads",
        python=platform.python_version(),
        commit=_commit(),
        threads=threads,
        prompt_tokens=len(prompt),
        tokens=tokens,
        weight_bytes=weight_bytes,
        read_bandwidth=bandwidth,
        host_share=share,
        results=results,
    )


def table(report: Report) -> str:
    """The report as a Markdown table, with what it was measured on."""
    bandwidth = median(report.read_bandwidth)
    bound = bandwidth / report.weight_bytes
    first = report.results[0]
    lines = [
        f"Decode at batch 1 on {report.machine}, {report.tokens} tokens after a prompt of "
        f"{report.prompt_tokens}, {len(first.tokens_per_second)} rounds in turns; Python "
        f"{report.python}, commit {report.commit}.",
        "",
        f"Read bandwidth in the same run: {bandwidth / 1e9:.1f} GB/s; the weights are "
        f"{report.weight_bytes / 1e6:.0f} MB a step, so the bound is {bound:.1f} tokens/s. "
        f"Time of a step outside the workers: {100 * report.host_share:.1f} %.",
        "",
        "| | tokens/s, median | all rounds | of the bound | ours is | same tokens | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in report.results:
        versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
        spread = f"{min(result.tokens_per_second):.1f}-{max(result.tokens_per_second):.1f}"
        lines.append(
            f"| {result.name} ({versions}) | {result.median:.1f} | {spread} "
            f"| {100 * result.median / bound:.0f} % | {first.median / result.median:.2f}x "
            f"| {result.same_tokens} of {result.compared} | {result.peak_bytes / 1e6:.0f} MB |"
        )
    return "\n".join(lines) + "\n"


def _commit() -> str:
    """The commit of the source, or the version where there is no repository."""
    folder = Path(mkport.__file__).resolve().parent
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=folder, capture_output=True, text=True
    )
    return done.stdout.strip() or mkport.__version__
