"""From prompts to answers without HTTP: prompts of mixed lengths, all there at once, through an
engine's prefill and decode. How requests come over a network is `serving`'s business.

Before anything is timed, every answer must have as many tokens as were asked for, and the shortest
requests are run alone too: how much of their answers is the same then is told.
"""

import platform
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import mkport
from mkport.engine.bench.decode import commit
from mkport.engine.bench.serving.mixes import CHAT_ANSWER, CHAT_PROMPT, lognormal
from mkport.engine.bench.serving.report import percentile
from mkport.engine.engine import Engine
from mkport.engine.request import Sampling
from mkport.engine.stream import EventStream
from mkport.errors import UserError

LONG_EVERY = 8  # one in so many prompts takes half of the context
ALONE = 3  # requests that are run alone too
SIZES = (128, 1024)  # tokens below which a prompt is called short, and middle
SPECIAL = 3  # ids that prompts leave out: the first ones often have a meaning of their own


@dataclass(frozen=True)
class Ask:
    """A prompt [tokens] and how many tokens its answer has."""

    prompt: tuple[int, ...]
    answer: int


@dataclass
class Told:
    """How one request went: `ids` [tokens] of its answer, seconds since all were submitted."""

    prompt: int  # tokens
    ids: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)  # [events] with tokens
    reason: str = ""
    error: str = ""

    @property
    def gaps(self) -> list[float]:
        """Seconds between two of its tokens, [events - 1]."""
        return [b - a for a, b in zip(self.at, self.at[1:], strict=False)]


@dataclass
class Report:
    """What a run measured, and on what; `prompts` and `answers` [requests] are in tokens."""

    model: str
    machine: str
    versions: dict[str, str]
    commit: str
    batch: int  # requests side by side
    context: int  # positions
    prompts: list[int]
    answers: list[int]
    same_alone: tuple[int, int]  # tokens of answers that are the same alone, of how many
    preemptions: int
    seconds: list[float]  # [rounds] until the last answer's end
    firsts: list[list[float]]  # [rounds][requests] seconds to a first token
    gaps: list[list[float]]  # [rounds][all gaps between two tokens of a request]

    def as_dict(self) -> dict[str, Any]:
        """Every sample, for the JSON file."""
        return asdict(self)


def mix(requests: int, vocab: int, context: int, seed: int = 0) -> list[Ask]:
    """Requests of chat-like lengths, one in eight with a prompt of half of `context` positions;
    random ids, the same for the same arguments.

    Raises UserError for a context that holds none of them.
    """
    shortest = CHAT_PROMPT[2] + CHAT_ANSWER[2]
    if context < 2 * shortest:
        raise UserError(
            f"A context of {context} positions is too short for prompts of mixed lengths: give at "
            f"least {2 * shortest}."
        )
    draw, asks = random.Random(seed), []
    for number in range(requests):
        prompt = min(lognormal(draw, CHAT_PROMPT), context // 2)
        if number % LONG_EVERY == LONG_EVERY - 1:
            prompt = context // 2
        answer = min(lognormal(draw, CHAT_ANSWER), context - prompt)
        ids = (draw.randrange(min(SPECIAL, vocab - 1), vocab) for _ in range(prompt))
        asks.append(Ask(tuple(ids), answer))
    return asks


def run(
    engine: Engine,
    asks: Sequence[Ask],
    machine: str,
    rounds: int = 3,
    advance: Callable[[float], object] = lambda amount: None,
) -> Report:
    """Runs `asks` [requests] once for the comparison and `rounds` times for the clock; `advance` is
    called once a round. Nothing is found in the prefix cache.

    Raises UserError when a request does not end with all of its tokens.
    """
    told, _ = _round(engine, asks)
    advance(1)
    same = compared = 0
    for place in sorted(range(len(asks)), key=lambda i: len(asks[i].prompt) + asks[i].answer)[
        :ALONE
    ]:
        alone, _ = _round(engine, [asks[place]])
        same += _shared(alone[0].ids, told[place].ids)
        compared += len(told[place].ids)
    report = Report(
        model=engine.name,
        machine=machine,
        versions={"mkport": mkport.__version__, "python": platform.python_version()},
        commit=commit(),
        batch=engine.max_batch,
        context=engine.context,
        prompts=[len(ask.prompt) for ask in asks],
        answers=[ask.answer for ask in asks],
        same_alone=(same, compared),
        preemptions=0,
        seconds=[],
        firsts=[],
        gaps=[],
    )
    before = engine.stats().preemptions
    for _ in range(rounds):
        told, took = _round(engine, asks)
        report.seconds.append(took)
        report.firsts.append([one.at[0] for one in told])
        report.gaps.append([gap for one in told for gap in one.gaps])
        advance(1)
    report.preemptions = engine.stats().preemptions - before
    return report


def _round(engine: Engine, asks: Sequence[Ask]) -> tuple[list[Told], float]:
    """Submits all, waits for all; what became of each, and the seconds that it took."""
    engine.reset_prefix_cache()
    told = [Told(len(ask.prompt)) for ask in asks]
    began = time.perf_counter()
    streams = [
        engine.submit(
            ask.prompt, Sampling(ask.answer, temperature=0.0, ignore_eos=True, seed=0)
        )
        for ask in asks
    ]  # fmt: skip
    readers = [
        threading.Thread(target=_read, args=(stream, one, began), daemon=True)
        for stream, one in zip(streams, told, strict=True)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    took = time.perf_counter() - began
    for ask, one in zip(asks, told, strict=True):
        if one.reason != "length" or len(one.ids) != ask.answer:
            raise UserError(
                f"A request of {one.prompt} tokens ended with {one.reason or 'nothing'!r} after "
                f"{len(one.ids)} of {ask.answer} tokens{': ' if one.error else ''}{one.error}. "
                "Nothing was timed."
            )
    return told, took


def _read(stream: EventStream, told: Told, began: float) -> None:
    for event in stream:
        if event.ids:
            told.ids += event.ids
            told.at.append(time.perf_counter() - began)
        told.reason, told.error = event.reason or "", event.error


def _shared(ids: Sequence[int], first: Sequence[int]) -> int:
    """How many ids two answers share before the first that differs."""
    pairs = enumerate(zip(ids, first, strict=True))
    return next((n for n, (a, b) in pairs if a != b), len(ids))


def table(report: Report) -> str:
    """The report as Markdown."""
    took = median(report.seconds)
    read, written = sum(report.prompts), sum(report.answers)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    same, compared = report.same_alone
    lines = [
        f"{report.model} on {report.machine} ({versions}, commit {report.commit}): "
        f"{len(report.prompts)} requests at once, {report.batch} side by side, a context of "
        f"{report.context}; greedy, without HTTP. Medians of {len(report.seconds)} rounds. Of the "
        f"shortest requests' {compared} tokens {same} are the same when they run alone. "
        f"{report.preemptions} preemptions.",
        "",
        "| prompts, tokens | answers, tokens | seconds | range | tokens/s read and written "
        "| tokens/s written |",
        "|---|---|---|---|---|---|",
        f"| {read} | {written} | {took:.2f} | {min(report.seconds):.2f}-{max(report.seconds):.2f} "
        f"| {(read + written) / took:.0f} | {written / took:.0f} |",
        "",
        "| prompts | requests | tokens | first token after, s | slowest |",
        "|---|---|---|---|---|",
    ]
    for name, places in _by_size(report.prompts):
        firsts = [turn[i] for turn in report.firsts for i in places]
        tokens = sum(report.prompts[i] for i in places)
        lines.append(
            f"| {name} | {len(places)} | {tokens} | {median(firsts):.2f} | {max(firsts):.2f} |"
        )
    gaps = [1e3 * gap for turn in report.gaps for gap in turn]
    lines += [
        "",
        f"Between two tokens of a request: {percentile(gaps, 50):.1f} ms in the middle, "
        f"{percentile(gaps, 99):.1f} ms for the slowest hundredth.",
    ]
    return "\n".join(lines) + "\n"


def _by_size(prompts: Sequence[int]) -> Iterable[tuple[str, list[int]]]:
    """The requests' places by the lengths of `prompts` [requests], without empty kinds."""
    short, middle = SIZES
    kinds: dict[str, list[int]] = {}
    for place, tokens in sorted(enumerate(prompts), key=lambda pair: pair[1]):
        name = (
            f"under {short} tokens"
            if tokens < short
            else f"{short} to {middle - 1}" if tokens < middle else f"{middle} and more"
        )  # fmt: skip
        kinds.setdefault(name, []).append(place)
    return kinds.items()
