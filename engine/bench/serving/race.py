"""The order of the measurements: which servers, in turns, round by round, and the bare decode loop.

Experiments are in `experiments`, tables and plots in `report`. All servers of a run stand ready at
the same time and idle while another is asked, so that a change of the machine meets them all.
"""

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mkport.doctor import cpu_model
from mkport.engine.bench.contestants import FLOAT32
from mkport.engine.bench.decode import Child, commit
from mkport.engine.bench.serving import experiments
from mkport.engine.bench.serving.experiments import ANSWER, LONG
from mkport.engine.bench.serving.servers import CannotRun, Plan, Server, running
from mkport.errors import UserError

EXPERIMENTS = ("overhead", "crowd", "prefill", "follow-up", "beside-long", "load")
BATCHES = (1, 8)
TURNS = 4  # of the bare loop and the server in a round, at each batch
PROMPT = 75  # tokens before the bare loop decodes: what a chat of `crowd` comes to
AT_ONCE = 8  # closed loop
RATES = (0.5, 1.0)  # open loop, requests a second
REQUESTS = 24  # of a mix
Advance = Callable[[float], None]


@dataclass
class Report:
    """What a run measured, and on what. Lists hold one entry a round, in which every sample is."""

    machine: str
    python: str
    commit: str
    threads: int
    model: str
    versions: dict[str, dict[str, str]] = field(default_factory=dict)  # by server
    skipped: dict[str, str] = field(default_factory=dict)  # servers left out, and why
    bare: dict[int, list[float]] = field(default_factory=dict)  # tokens a second, by batch
    crowd: dict[str, dict[int, list[Any]]] = field(default_factory=dict)  # by server, by chats
    prefill: dict[str, list[float]] = field(default_factory=dict)  # seconds, by contestant
    follow_up: list[Any] = field(default_factory=list)
    beside_long: list[Any] = field(default_factory=list)
    load: list[Any] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Every sample, for the JSON file."""
        return asdict(self)


def race(
    plans: Sequence[Plan],
    directory: Path,
    prompt: Sequence[int],
    *,
    only: Sequence[str],
    threads: int,
    rounds: int,
    requests: int = REQUESTS,
    advance: Advance = lambda amount: None,
) -> Report:
    """Runs the experiments in `only`; the first plan is the server that they are about.

    `prompt` [`PROMPT` or more] are token ids for the bare loop. The other plans take part in
    "crowd" alone, and are left out by name when they cannot run. Raises UserError when the first
    cannot, or a request fails.
    """
    report = Report(
        f"{cpu_model()}, {threads} threads",
        platform.python_version(),
        commit(),
        threads,
        directory.name,
    )
    with ExitStack() as stack:
        servers: list[Server] = []
        for plan in plans if "crowd" in only else plans[:1]:
            try:
                server = stack.enter_context(running(plan))
                experiments.crowd(server, 2, seed=0, tokens=4)  # what only the first request costs
            except (CannotRun, UserError) as error:
                if plan is plans[0]:
                    raise UserError(f"The server {plan.name} cannot be measured: {error}") from None
                report.skipped[plan.name] = str(error)
                continue
            servers.append(server)
            report.versions[plan.name] = server.versions
        _compare(report, servers, directory, prompt, only, rounds, advance)
        if "prefill" in only:
            _prefill(report, directory, prompt, rounds)
        ours = servers[0]
        for number in range(rounds):
            if "follow-up" in only:
                report.follow_up.append(experiments.follow_up(ours, number))
            if "beside-long" in only:
                report.beside_long.append(experiments.beside_long(ours, number))
            advance(1)
        if "load" in only:
            report.load += _load(ours, requests)
            advance(1)
    return report


def _compare(
    report: Report,
    servers: Sequence[Server],
    directory: Path,
    prompt: Sequence[int],
    only: Sequence[str],
    rounds: int,
    advance: Advance,
) -> None:
    """Crowds at every server and the bare loop, in turns."""
    children: Mapping[int, Child] = {}
    try:
        if "overhead" in only:
            children = {batch: _bare(directory, batch, report.threads) for batch in BATCHES}
            report.bare = {batch: [] for batch in BATCHES}
        if "overhead" in only or "crowd" in only:
            report.crowd = {s.plan.name: {batch: [] for batch in BATCHES} for s in servers}
        for number in range(rounds if report.crowd else 0):
            for batch in BATCHES:
                child = children.get(batch)
                for turn in range(TURNS if child else 1):
                    served = partial(_ask, report, servers[0], batch, 1000 * number + 10 * turn)
                    both = [served]
                    if child:
                        both.append(partial(_decode, report, child, batch, prompt))
                    for measure in both[:: (-1) ** turn]:  # neither always comes first
                        measure()
                for server in servers[1:]:
                    _ask(report, server, batch, 1000 * number)
            advance(1)
    finally:
        for child in children.values():
            child.close()


def _ask(report: Report, server: Server, batch: int, seed: int) -> None:
    """A crowd at a server."""
    found = experiments.crowd(server, batch, seed + batch)
    report.crowd[server.plan.name][batch].append(found)


def _decode(report: Report, child: Child, batch: int, prompt: Sequence[int]) -> None:
    """As many tokens of as many sequences by the bare loop."""
    prompts = [list(prompt[:PROMPT])] * batch
    told = child.ask(what="decode", prompts=prompts, tokens=ANSWER)
    report.bare[batch].append(batch * ANSWER / told["seconds"])


def _prefill(report: Report, directory: Path, prompt: Sequence[int], rounds: int) -> None:
    """The bare engine and transformers read a prompt, in turns."""
    ids = (list(prompt) * -(-LONG // len(prompt)))[:LONG]
    setup = {"directory": str(directory), "gguf": "", "threads": report.threads, "batch": 1}
    children: list[Child] = []
    try:
        for name in ("mkport", FLOAT32):
            try:
                children.append(Child(name, setup | {"context": LONG}))
            except UserError as error:
                report.skipped[name] = str(error)
                continue
            report.versions.setdefault(name, children[-1].versions)
            children[-1].ask(what="prefill", prompt=ids)  # what only the first costs
            report.prefill[name] = []
        for _ in range(rounds):
            for child in children:
                report.prefill[child.name].append(child.ask(what="prefill", prompt=ids)["seconds"])
    finally:
        for child in children:
            child.close()


def _bare(directory: Path, batch: int, threads: int) -> Child:
    """The decode loop without a server, in a process of its own."""
    context = 256 * -(-(PROMPT + ANSWER + 1) // 256)
    setup = {"directory": str(directory), "gguf": "", "threads": threads}
    return Child("mkport", setup | {"batch": batch, "context": context})


def _load(server: Server, requests: int) -> list[Any]:
    """Both mixes, in the closed loop and in open ones."""
    runs = []
    for mix in ("chat", "agent"):
        runs.append(experiments.load(server, mix, requests, seed=1, at_once=AT_ONCE))
        for rate in RATES:
            seed = 2 + RATES.index(rate)
            runs.append(experiments.load(server, mix, requests, seed, a_second=rate))
    return runs
