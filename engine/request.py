"""What the server and the engine say to each other: a request, its sampling, and the events back.

Only types: how a request is scheduled lives in `core`, what a field may be and does to logits in
`sampling`.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mkport.engine.tokenizer import Tokenizer
from mkport.trace.trace import Trace

Reason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Grammar:
    """A language that the output must belong to."""

    kind: Literal["json_object", "json_schema", "regex", "lark"]
    text: str = ""  # the schema as JSON, the pattern, or the grammar; empty for "json_object"


@dataclass(frozen=True)
class Sampling:
    """How one request's tokens are chosen; `sampling.check` says whether that can be."""

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
