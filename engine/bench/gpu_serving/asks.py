"""Requests of random prompts to a running server. What is learned from the answers is in `speeds`
and `behaviour`."""

import json
import random
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mkport.engine.bench.serving.client import Ask, Sample, run

Data = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How long prompts and outputs are."""

    context: int  # positions of a sequence
    contexts: float  # that the cache holds
    short: int  # tokens of a prompt that is run in one chunk beside others
    output: int
    long: int  # tokens of the prompt that is timed
    grown: int  # tokens that each of four requests writes until one is preempted
    long_requests: int  # tokens of their prompts
    settle_s: float  # that streams run before a long prompt comes


@dataclass(frozen=True)
class Served:
    """A running server."""

    host: str
    port: int
    model: str
    vocab: int
    sizes: Sizes

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{self.host}:{self.port}"

    def ids(self, count: int, number: int) -> list[int]:
        """The random prompt `number` of `count` tokens: [count] ids."""
        draw = random.Random(f"{count} {number}")
        return [draw.randrange(258, self.vocab) for _ in range(count)]

    def ask(self, count: int, number: int, tokens: int, **more: Any) -> Ask:
        """A streamed completion of the random prompt `number`; `more`: fields, when it is sent."""
        when = {name: more.pop(name) for name in ("at", "after", "label") if name in more}
        body = {
            "model": self.model,
            "prompt": self.ids(count, number),
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "ignore_eos": True,
        }
        return Ask(body | more, path="/v1/completions", **when)

    def run(self, asks: Sequence[Ask]) -> list[Sample]:
        """The answers. Raises RuntimeError with what was wrong with one."""
        samples = run((self.host, self.port), asks)
        for sample in samples:
            if sample.error:
                raise RuntimeError(sample.error)
        return samples

    def stats(self) -> Data:
        """The engine's counters."""
        with urllib.request.urlopen(f"{self.url}/stats", timeout=10) as answer:
            found: Data = json.loads(answer.read())
        return found


def forget(served: Served) -> None:
    """Empties the prefix cache, so that the next prompt is computed."""
    asked = urllib.request.Request(f"{served.url}/reset_prefix_cache", b"", method="POST")
    with urllib.request.urlopen(asked, timeout=10):
        pass
