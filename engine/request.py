"""What the server and the engine say to each other: a request, its sampling, and the events back.

Types, and what their fields may be: how a request is scheduled lives in `core`, what a field does
to logits in `sampling`.
"""

import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, Protocol

from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError
from mkport.trace.trace import Trace

Reason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Grammar:
    """A language that the output must belong to."""

    kind: Literal["json_object", "json_schema", "regex", "lark"]
    text: str = ""  # the schema as JSON, the pattern, or the grammar; empty for "json_object"


@dataclass(frozen=True)
class Sampling:
    """How one request's tokens are chosen; `check` says whether that can be."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None  # None: the engine draws one
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # top alternatives a token, 0: the chosen one only, None: none
    prompt_logprobs: int | None = None  # the same for the prompt's tokens
    grammar: Grammar | None = None
    skip_special: bool = True  # special tokens give no text

    @classmethod
    def of(cls, max_tokens: int, fields: Mapping[str, Any]) -> "Sampling":
        """From fields as a person writes them: lists for tuples, one stop string for a tuple of
        one. Raises UserError for a field that is not there."""
        known = [name for name in cls.__dataclass_fields__ if name != "max_tokens"]
        for name in fields:
            if name not in known:
                raise UserError(f"There is no field {name!r}: there are {', '.join(known)}.")
        stop = fields.get("stop", ())
        several = {"stop": (stop,) if isinstance(stop, str) else stop}
        several |= {"stop_token_ids": fields.get("stop_token_ids", ())}
        for name, value in several.items():
            if not isinstance(value, list | tuple):
                raise UserError(f"{name} = {value!r} must be a list.")
        return cls(max_tokens, **{**fields, **{n: tuple(v) for n, v in several.items()}})

    def check(self) -> None:
        """Raises UserError for a value that no token can be chosen by, naming its field."""
        for name, allowed in _NUMBERS.items():
            value = getattr(self, name)
            if not (_is_finite(value) and allowed.holds(value)):
                raise UserError(f"{name} = {value!r} must be {allowed.words}.")
        for name in ("max_tokens", "min_tokens", "top_k"):
            value = getattr(self, name)
            if not _is_whole(value) or value < 0:
                raise UserError(f"{name} = {value!r} must be a whole number, 0 or more.")
        if self.seed is not None and not (_is_whole(self.seed) and -(2**63) <= self.seed < 2**63):
            raise UserError(f"seed = {self.seed!r} must be a whole number of 64 bits.")
        if not all(map(_is_whole, (*self.stop_token_ids, *self.logit_bias))):
            raise UserError("stop_token_ids and logit_bias must name token ids, whole numbers.")
        if not all(map(_is_finite, self.logit_bias.values())):
            raise UserError("logit_bias must give finite numbers.")
        if not all(isinstance(text, str) and text for text in self.stop):
            raise UserError(f"stop = {self.stop!r} must be texts that are not empty.")


@dataclass(frozen=True)
class _Allowed:
    words: str
    holds: Callable[[float], bool]


_NUMBERS = {
    "temperature": _Allowed("a number, 0 or more", lambda x: x >= 0),
    "top_p": _Allowed("above 0, and 1 at most", lambda x: 0 < x <= 1),
    "min_p": _Allowed("from 0 to 1", lambda x: 0 <= x <= 1),
    "repetition_penalty": _Allowed("a number above 0", lambda x: x > 0),
    "presence_penalty": _Allowed("a finite number", lambda x: True),
    "frequency_penalty": _Allowed("a finite number", lambda x: True),
}


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class TokenLogprob:
    """A chosen token and its most likely rivals, by log probability before temperature."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob), most likely first


@dataclass(slots=True)
class Event:
    """News of one choice of a request: text that is final, and how it ended if it did."""

    choice: int
    text: str = ""
    ids: tuple[int, ...] = ()  # tokens since the last event, a stop token included
    logprobs: tuple[TokenLogprob, ...] = ()  # one for each of `ids`, when asked for
    reason: Reason | None = None  # set on a choice's last event
    stop: str | int | None = None  # the stop string or token id that ended it
    error: str = ""  # with reason "error": what happened to this request alone
    own: bool = False  # likewise: by what it asks for, so that to send it again is of no use


@dataclass(frozen=True)
class Accepted:
    """What is known of a request when its prompt has been run."""

    prompt_tokens: int
    cached_tokens: int  # of them, found in the prefix cache
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()  # None for the first token


class Stream(Protocol):
    """The events of one submitted request, all choices interleaved, until every choice ended."""

    id: str
    accepted: Accepted | None  # set before the first event arrives

    def __aiter__(self) -> AsyncIterator[Event]: ...

    def cancel(self) -> None:
        """Ends the request in whatever state it is. Safe from any thread, and more than once."""
        ...

    @property
    def ended(self) -> bool:
        """Whether every choice's last event was taken."""
        ...

    def drain(self) -> list[Event]:
        """The events that are there."""
        ...

    def listen(self, heard: Callable[[], object] | None) -> None:
        """In an event loop: calls `heard` when events are there, instead of what iterates."""
        ...


@dataclass(frozen=True)
class Stats:
    """Counters and gauges of an engine, for metrics and the page."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0  # held blocks over all blocks, 0 to 1
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    preemptions: int = 0
    steps: int = 0
    step_tokens: int = 0  # tokens run by the last step
    prompt_tokens: int = 0
    generation_tokens: int = 0


class QueueFull(Exception):
    """The engine holds as many waiting requests as it may. `retry_s` is a guess, in seconds."""

    def __init__(self, retry_s: int = 1) -> None:
        super().__init__("the queue is full")
        self.retry_s = retry_s


class EngineLike(Protocol):
    """What the server needs of an engine."""

    name: str  # the model's name
    context: int  # positions a sequence can have, prompt and output together
    vocab: int
    max_batch: int
    tokenizer: Tokenizer

    def submit(self, prompt: list[int], sampling: Sampling, n: int = 1) -> Stream:
        """Queues a request of `n` choices after `prompt` [ids]; returns at once. Raises UserError
        for a request that can never run (naming the limit), QueueFull when too many wait."""
        ...

    def stats(self) -> Stats:
        """Counters and gauges as they are now. Safe from any thread."""
        ...

    def heartbeat_s(self) -> float:
        """Seconds since the engine's loop last came round; infinite when it has died."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix; requests that run keep what they hold. Safe from any
        thread."""
        ...

    def timeline(self) -> Trace | None:
        """What happened in the last traced step; None when there is none. Safe from any thread."""
        ...

    def close(self, drain_s: float = 0.0) -> None:
        """Ends the engine, after at most `drain_s` seconds for what is running."""
        ...
