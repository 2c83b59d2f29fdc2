"""What is asked of a running server, and what is read out of its answers.

Each function is one experiment with one server; it returns plain data in which every sample is
kept. Starting servers and taking turns is `race`'s part.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from mkport.engine.bench.serving import mixes
from mkport.engine.bench.serving.client import Ask, Sample, run
from mkport.engine.bench.serving.servers import Server
from mkport.errors import UserError

LONG = 2000  # tokens of the long prompt
ANSWER = 64  # tokens written by each stream of a crowd
TOGETHER = 4096  # bytes that a client of a crowd reads together
NEIGHBOURS = 7  # requests that run while a long prompt is read
ALONE_S = 4.0  # that they run without it, before
WRITTEN = 450  # tokens of each of them: enough for before, meanwhile, and a while after
Data = dict[str, Any]


def crowd(server: Server, count: int, seed: int, tokens: int = ANSWER) -> Data:
    """So many chats at the same time: `tokens_per_second` of all, in the whole and once all write.

    The first counts from the first request's sending to the last one's end; the second while every
    stream writes, which is the server's decode speed alone. Some twenty tokens are read together.
    """
    draw = random.Random(seed)
    said = [f"Tell a long story about the {mixes.words(draw, 30)}." for _ in range(count)]
    asks = [
        Ask(server.body([{"role": "user", "content": text}], tokens), together=TOGETHER)
        for text in said
    ]
    samples = ask(server, asks)
    began, ended = min(s.sent for s in samples), max(s.ended for s in samples)
    first, last = max(s.times[0] for s in samples), min(s.times[-1] for s in samples)
    inside = sum(sum(first < when <= last for when in s.times) for s in samples)
    return {
        "tokens_per_second": sum(s.tokens for s in samples) / (ended - began),
        "writing_tokens_per_second": inside / (last - first) if last > first else 0.0,
        "samples": [_row(s) for s in samples],
    }


def follow_up(server: Server, seed: int) -> Data:
    """A new prompt of `LONG` tokens, and then the next turn of the same talk: time to the first
    text of both, in seconds."""
    draw = random.Random(f"follow {seed}")
    said = [{"role": "user", "content": mixes.words(draw, LONG)}]
    (first,) = ask(server, [Ask(server.body(said, 16), label="uncached")])
    said += [
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": mixes.words(draw, 20)},
    ]
    (second,) = ask(server, [Ask(server.body(said, 16), label="follow-up")])
    return {
        "uncached_s": first.first_token_s,
        "follow_up_s": second.first_token_s,
        "samples": [_row(first), _row(second)],
    }


def beside_long(server: Server, seed: int, tokens: int = WRITTEN, alone_s: float = ALONE_S) -> Data:
    """Running requests while a long prompt is read: their gaps between tokens meanwhile, and
    before and after, while all of them run; in seconds."""
    draw = random.Random(f"beside {seed}")
    asks = [
        Ask(server.body([{"role": "user", "content": mixes.words(draw, 30)}], tokens))
        for _ in range(NEIGHBOURS)
    ]
    said = [{"role": "user", "content": mixes.words(draw, LONG)}]
    asks.append(Ask(server.body(said, 4), alone_s, NEIGHBOURS, "long"))
    *neighbours, long = ask(server, asks)
    settled, over = max(s.times[0] for s in neighbours), min(s.times[-1] for s in neighbours)
    idle: list[float] = []
    during: list[float] = []
    for sample in neighbours:
        for start, end in zip(sample.times, sample.times[1:], strict=False):
            if end > long.sent and start < long.times[0]:
                during.append(end - start)
            elif settled <= start and end <= over and (end <= long.sent or start >= long.ended):
                idle.append(end - start)
    return {
        "idle_s": idle,
        "during_s": during,
        "long_first_s": long.first_token_s,
        "samples": [_row(s) for s in (*neighbours, long)],
    }


def load(
    server: Server,
    mix: str,
    count: int,
    seed: int,
    at_once: int | None = None,
    a_second: float | None = None,
    advance: Callable[[float], None] = lambda amount: None,
) -> Data:
    """A mix of requests ("chat" or "agent"), in a closed loop of `at_once` requests, or in an open
    one of `a_second` requests a second on average."""
    make = {"chat": mixes.chats, "agent": mixes.agents}[mix]
    asks = make(count, server.body, seed)
    if a_second is not None:
        asks = mixes.arriving(asks, a_second, seed)
    samples = ask(server, asks, at_once, advance)
    spent = max(s.ended for s in samples) - min(s.sent for s in samples)
    return {
        "mix": mix,
        "at_once": at_once,
        "a_second": a_second,
        "requests_per_second": len(samples) / spent,
        "tokens_per_second": sum(s.tokens for s in samples) / spent,
        "samples": [_row(s) for s in samples],
    }


def ask(
    server: Server,
    asks: Sequence[Ask],
    at_once: int | None = None,
    advance: Callable[[float], None] = lambda amount: None,
) -> list[Sample]:
    """Answers to all requests. Raises UserError when one fails, since then nothing was measured."""
    samples = run(server.address, asks, at_once, advance)
    for sample in samples:
        if sample.error or not sample.times:
            raise UserError(
                f"The server {server.plan.name} failed a request of the benchmark, so nothing is "
                f"reported: {sample.error or 'an answer without text'}."
            )
    return samples


def _row(sample: Sample) -> Data:
    """A sample for the file: times in milliseconds to the hundredth."""
    return {
        "label": sample.label,
        "sent_ms": round(1e3 * sample.sent, 2),
        "first_ms": round(1e3 * sample.first_token_s, 2),
        "gaps_ms": [round(1e3 * gap, 2) for gap in sample.gaps],
        "ended_ms": round(1e3 * sample.ended, 2),
        "prompt_tokens": sample.prompt_tokens,
        "cached_tokens": sample.cached_tokens,
        "tokens": sample.tokens,
        "finish": sample.finish,
    }
