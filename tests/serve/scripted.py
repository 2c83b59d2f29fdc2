"""An engine without a model: a script says which tokens come out of a prompt, and when.

It keeps `EngineLike`'s promises (queueing, steps, cancellation, events on the event loop), so that
a server can be tested with answers that are known. What it says is decided by a function:

    def script(asked: Asked) -> Reply: ...

`asked` holds the prompt as text and ids and the sampling; the reply is a text, or something to
iterate over whose items are token ids, texts, `Wait`s and `Fail`s, without an end if need be. When
it ends, the end-of-turn token follows. A prompt is run `chunk` tokens a step, each step takes
`step_s` seconds, and `max_batch` requests run at once.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from mkport.engine.request import (
    Accepted,
    Event,
    QueueFull,
    Reason,
    Sampling,
    Stats,
    TokenLogprob,
)
from mkport.engine.stream import EventStream, wake
from mkport.engine.text import OutputText
from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError
from mkport.trace import Trace

CHATML = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>"
    '{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LOGPROB = -0.5  # of every token


@dataclass(frozen=True)
class Asked:
    """What a script sees of one choice of a request."""

    text: str  # the prompt, special tokens shown
    ids: list[int]
    sampling: Sampling
    choice: int


@dataclass(frozen=True)
class Wait:
    """Nothing comes for so long."""

    seconds: float


@dataclass(frozen=True)
class Fail:
    """The request fails, as one whose logits are not finite does."""

    error: str = "The logits of this request are not finite."


Reply = str | Iterable["int | str | Wait | Fail"]
Script = Callable[[Asked], Reply]


def byte_tokenizer(
    template: str = CHATML, special: Sequence[str] = SPECIAL, end: str = "<|im_end|>"
) -> Tokenizer:
    """One token a byte, then the special ones; `end` is what a turn ends with."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: i for i, text in enumerate(alphabet)}
    backend = Backend(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    ends = (len(vocab) + special.index(end),)
    return Tokenizer(backend, ends, {"default": template}, {"eos_token": end})


@dataclass
class _Choice:
    number: int
    items: Iterator["int | str | Wait | Fail"]
    text: OutputText
    pending: list[int] = field(default_factory=list)  # the rest of a text item
    produced: int = 0
    wait_until: float = 0.0
    ended: bool = False


@dataclass
class _Request:
    stream: EventStream
    cancelled: threading.Event
    prompt: list[int]
    sampling: Sampling
    choices: list[_Choice]
    left: int  # prompt tokens still to run


class ScriptedEngine:
    """See the module. `submitted` keeps the last prompts and their sampling for tests to see."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        tokenizer: Tokenizer | None = None,
        name: str = "scripted",
        context: int = 4096,
        max_batch: int = 8,
        max_waiting: int = 256,
        step_s: float = 0.0,
        chunk: int = 1 << 20,
    ) -> None:
        self.script: Script = script or (lambda asked: "Hello, world!")
        self.tokenizer = tokenizer or byte_tokenizer()
        self.name = name
        self.context = context
        self.vocab = self.tokenizer.vocab_size
        self.max_batch = max_batch
        self.max_waiting = max_waiting
        self.step_s = step_s
        self.chunk = chunk
        self.submitted: deque[tuple[list[int], Sampling]] = deque(maxlen=1000)
        self.resets = 0
        self.dead = False
        self._ids = itertools.count()
        self._lock = threading.Condition()
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._closed = False
        self._deadline = 0.0
        self._counts = {"steps": 0, "prompt_tokens": 0, "generation_tokens": 0}
        self._thread = threading.Thread(target=self._loop, daemon=True, name="scripted-engine")
        self._thread.start()

    def submit(self, prompt: list[int], sampling: Sampling, n: int = 1) -> EventStream:
        """As `EngineLike` says."""
        if len(prompt) + sampling.max_tokens > self.context:
            raise UserError(f"{len(prompt)} tokens and the answer exceed {self.context} positions.")
        cancelled = threading.Event()
        stream = EventStream(f"s{next(self._ids)}", n, cancelled.set)
        text = self.tokenizer.decode(prompt, skip_special=False)
        choices = [
            _Choice(
                number,
                iter(self._items(Asked(text, prompt, sampling, number))),
                OutputText(
                    self.tokenizer, sampling.stop, sampling.min_tokens, sampling.skip_special
                ),
            )
            for number in range(n)
        ]
        with self._lock:
            if len(self._waiting) >= self.max_waiting:
                raise QueueFull(2)
            self.submitted.append((prompt, sampling))
            self._waiting.append(
                _Request(stream, cancelled, prompt, sampling, choices, len(prompt))
            )
            self._lock.notify()
        return stream

    def _items(self, asked: Asked) -> Iterable["int | str | Wait | Fail"]:
        reply = self.script(asked)
        return [reply] if isinstance(reply, str) else reply

    def stats(self) -> Stats:
        """As `EngineLike` says."""
        with self._lock:
            running, waiting = len(self._running), len(self._waiting)
            usage = running / self.max_batch
            return Stats(running=running, waiting=waiting, kv_usage=usage, **self._counts)

    def heartbeat_s(self) -> float:
        """As `EngineLike` says; infinite once `dead` is set."""
        return float("inf") if self.dead or not self._thread.is_alive() else 0.0

    def reset_prefix_cache(self) -> None:
        """Counts how often it was called."""
        self.resets += 1

    def timeline(self) -> Trace | None:
        """There is none."""
        return None

    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        with self._lock:
            return not self._running and not self._waiting

    def close(self, drain_s: float = 0.0) -> None:
        """As `EngineLike` says."""
        with self._lock:
            self._closed = True
            self._deadline = time.monotonic() + drain_s
            self._lock.notify()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._running and not self._closed:
                    self._lock.wait()
                if self._closed and (self._done() or time.monotonic() >= self._deadline):
                    for request in self._running + self._waiting:
                        self._tell(request, self._aborted(request))
                    return
                room = self.max_batch - len(self._running)
                self._running += self._waiting[:room]
                del self._waiting[:room]
            time.sleep(self.step_s or 1e-4)
            self._step()

    def _done(self) -> bool:
        return not self._running and not self._waiting

    def _step(self) -> None:
        self._counts["steps"] += 1
        for request in [*self._running, *self._waiting]:
            if request.cancelled.is_set():
                self._tell(request, self._aborted(request))
                self._forget(request)
            elif request in self._running:
                self._advance(request)

    def _forget(self, request: _Request) -> None:
        with self._lock:
            for requests in (self._running, self._waiting):
                if request in requests:
                    requests.remove(request)

    def _tell(self, request: _Request, events: list[Event]) -> None:
        for event in events:
            request.stream.put(event)
        wake([request.stream])

    def _aborted(self, request: _Request) -> list[Event]:
        return [Event(c.number, reason="abort") for c in request.choices if not c.ended]

    def _advance(self, request: _Request) -> None:
        if request.left > self.chunk:
            request.left -= self.chunk
            self._counts["prompt_tokens"] += self.chunk
            return
        if request.stream.accepted is None:
            self._counts["prompt_tokens"] += request.left
            known: list[TokenLogprob | None] = []
            if (top := request.sampling.prompt_logprobs) is not None:
                known = [None, *(self._logprob(token, top) for token in request.prompt[1:])]
            request.stream.accepted = Accepted(len(request.prompt), 0, tuple(known))
        events: list[Event] = []
        for choice in request.choices:
            if not choice.ended and time.monotonic() >= choice.wait_until:
                event = self._next(request, choice)
                if event is not None:
                    events.append(event)
        if all(choice.ended for choice in request.choices):
            self._forget(request)
        self._tell(request, events)

    def _next(self, request: _Request, choice: _Choice) -> Event | None:
        """One token of a choice."""
        if request.sampling.max_tokens == 0:
            choice.ended = True
            return Event(choice.number, reason="length")
        if not choice.pending:
            item = next(choice.items, None)
            if isinstance(item, Wait):
                choice.wait_until = time.monotonic() + item.seconds
                return None
            if isinstance(item, Fail):
                choice.ended = True
                return Event(choice.number, reason="error", error=item.error)
            if item is None:
                choice.pending = [self.tokenizer.eos_ids[0]]
            elif isinstance(item, str):
                choice.pending = self.tokenizer.encode(item, add_special=False)
                if not choice.pending:
                    return None
            else:
                choice.pending = [item]
        sampling, token = request.sampling, choice.pending.pop(0)
        choice.produced += 1
        self._counts["generation_tokens"] += 1
        reason: Reason | None = None
        stop: str | int | None = None
        text = ""
        is_end = token in self.tokenizer.eos_ids and not sampling.ignore_eos
        if (is_end or token in sampling.stop_token_ids) and choice.produced > sampling.min_tokens:
            reason, stop = "stop", token
        else:
            text = choice.text.push(token)
            if choice.text.stopped is not None:
                reason, stop = "stop", choice.text.stopped
            elif choice.produced >= sampling.max_tokens:
                reason = "length"
        if reason is not None:
            text += choice.text.finish()
            choice.ended = True
        known: tuple[TokenLogprob, ...] = ()
        if sampling.logprobs is not None:
            known = (self._logprob(token, sampling.logprobs),)
        return Event(choice.number, text, (token,), known, reason, stop)

    def _logprob(self, token: int, top: int) -> TokenLogprob:
        rivals = [token, *(i for i in range(top) if i != token)][:top]
        return TokenLogprob(token, LOGPROB, tuple((i, LOGPROB - k) for k, i in enumerate(rivals)))
