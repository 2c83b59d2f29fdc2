"""The serving engine as a library: `Engine(model)`, then `generate`, `chat`, `stream`, `submit`.

It checks requests and makes jobs of them; the thread in which these run is `loop`'s, HTTP is the
server's.
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, cast, overload

from mkport.engine.apart import ApartLoop, Build
from mkport.engine.build import build, opened
from mkport.engine.capacity import Settings
from mkport.engine.grammar import Grammars
from mkport.engine.job import Choice, Job
from mkport.engine.load import LoadedModel
from mkport.engine.loop import Loop
from mkport.engine.request import QueueFull, Reason, Sampling, Stats, TokenLogprob
from mkport.engine.runner import Runner
from mkport.engine.sampling import Sampler, check, draw_seed, sampling_of
from mkport.engine.sequence import Sequence as Tokens
from mkport.engine.stream import EventStream
from mkport.engine.text import OutputText
from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError
from mkport.kernels.sample_join.op import RIVALS
from mkport.trace import Trace

RETRY_S = 0.05  # between looks for room in the queue
MAX_WAITING = 256  # requests that wait to begin
MAX_TOKENS = 256  # of `generate`, when the caller names no number

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Output:
    """What `generate` returns for one choice."""

    text: str
    ids: list[int]  # [tokens] that were written, a stop token included
    reason: Reason
    stop: str | int | None = None  # the stop string or token id that ended it
    logprobs: list[TokenLogprob] | None = None
    error: str = ""


class Engine:
    """A model that serves many requests at once. Use as a context manager, or `close`.

    `model` is what `mkport run` takes (a directory, a file, a name; None: the demo model) or a
    `LoadedModel`; `machine` is "cpu", "cuda", or "host", which is slow. `kv_memory` is in bytes,
    `max_model_len` in positions, `prefill_chunk` and `mixed_chunk` in prompt tokens a step (alone,
    and beside running requests, whose pause it bounds), `pause_ms` in milliseconds, of what PyTorch
    runs of a prompt between two of their steps. The loop runs in a thread, on a GPU in a process of
    its own, or as `own_process` says. Raises UserError for whatever the model or the sizes do not
    allow.
    """

    def __init__(
        self,
        model: str | LoadedModel | None = None,
        *,
        machine: str = "cpu",
        dtype: str | None = None,
        max_batch: int = Settings.max_batch,
        max_model_len: int | None = None,
        kv_memory: int | None = None,
        prefill_chunk: int | None = None,
        mixed_chunk: int | None = None,
        page: int = Settings.page,
        prefix_cache: bool = True,
        pause_ms: float = Settings.pause_ms,
        max_waiting: int = MAX_WAITING,
        workers: int | None = None,
        own_process: bool | None = None,
    ) -> None:
        settings = Settings(
            max_batch, max_model_len, kv_memory, prefill_chunk, mixed_chunk, page, prefix_cache,
            pause_ms,
        )  # fmt: skip
        options = {"machine": machine, "settings": settings, "workers": workers}
        if (machine == "cuda") if own_process is None else own_process:
            loaded = opened(model, dtype, machine)
            options |= {"model": str(loaded.directory), "dtype": loaded.weights.dtype}
            loop = ApartLoop(build, options, max_waiting)
            self._start(loop, loaded.tokenizer, loop.name, loaded.config.vocab)
        else:
            built = build(model=model, dtype=dtype, **options)  # type: ignore[arg-type]
            here = Loop(built.runner, built.tokenizer.eos_ids, max_waiting)
            self._start(here, built.tokenizer, built.name, built.vocab)

    @classmethod
    def over(
        cls, runner: Runner, tokenizer: Tokenizer, name: str, vocab: int, max_waiting: int
    ) -> "Engine":
        """An engine over a runner that is there already."""
        engine = cls.__new__(cls)
        engine._start(Loop(runner, tokenizer.eos_ids, max_waiting), tokenizer, name, vocab)
        return engine

    @classmethod
    def apart(
        cls,
        build: Build,
        options: Mapping[str, Any],
        tokenizer: Tokenizer,
        vocab: int,
        max_waiting: int = MAX_WAITING,
    ) -> "Engine":
        """An engine in a process of its own over what `build(**options)` makes there, a function
        that is found by its name. Raises UserError for what `build` refuses."""
        engine, loop = cls.__new__(cls), ApartLoop(build, options, max_waiting)
        engine._start(loop, tokenizer, loop.name, vocab)
        return engine

    def _start(self, loop: Loop | ApartLoop, tokenizer: Tokenizer, name: str, vocab: int) -> None:
        self.name, self.vocab, self.tokenizer = name, vocab, tokenizer
        self.context, self.max_batch = loop.context, loop.max_batch
        self.grammars = Grammars(tokenizer, vocab)
        self._loop = loop
        self._names, self._prefix = itertools.count(), secrets.token_hex(4)

    def submit(self, prompt: Sequence[int], sampling: Sampling, n: int = 1) -> EventStream:
        """Queues a request of `n` choices after `prompt` [ids]; returns at once, but for a grammar
        that `grammars` has not compiled yet. Safe from any thread.

        Raises UserError for a request that can never run, naming the limit, or whose grammar does
        not compile; QueueFull when too many wait, or the engine is closing.
        """
        job = self.job(prompt, sampling, n)
        self.add(job)
        return job.stream

    def add(self, job: Job) -> None:
        """Queues what `job` made. Raises QueueFull as `submit` does."""
        self._loop.add(job)

    def job(self, prompt: Sequence[int], sampling: Sampling, n: int = 1) -> Job:
        """A request that is not queued yet. Raises UserError as `submit` does."""
        ids = list(prompt)
        self._check(ids, sampling, n)
        seed = draw_seed() if sampling.seed is None else sampling.seed
        ends = () if sampling.ignore_eos else self.tokenizer.eos_ids
        every = sampling.prompt_logprobs is not None
        choices: list[Choice] = []
        for index in range(n):
            leader = choices[0].tokens if choices else None
            tokens = Tokens(0, list(ids), len(ids), every and leader is None, leader)
            sampler = Sampler(sampling, ids, index, seed, ends)
            text = OutputText(
                self.tokenizer, sampling.stop, sampling.min_tokens, sampling.skip_special
            )
            matcher = self.grammars.matcher(sampling.grammar) if sampling.grammar else None
            choices.append(Choice(index, sampler, text, tokens, matcher))
        name = f"{self._prefix}-{next(self._names)}"
        stream = EventStream(name, n, lambda: self._loop.cancel(job))
        job = Job(stream, ids, sampling, choices)
        return job

    @overload
    def generate(
        self, prompts: Prompt, max_tokens: int = ..., *, n: Literal[1] = 1, **fields: Any
    ) -> Output: ...

    @overload
    def generate(
        self, prompts: list[str] | list[list[int]], max_tokens: int = ..., **fields: Any
    ) -> list[Output]: ...

    def generate(
        self,
        prompts: Prompt | list[str] | list[list[int]],
        max_tokens: int = MAX_TOKENS,
        *,
        n: int = 1,
        **fields: Any,
    ) -> Output | list[Output]:
        """Runs a prompt, or several side by side, to the end.

        A prompt is text or token ids, `prompts` [prompts] of them or one; `fields` are those of
        `Sampling` (temperature, seed, stop, ...). One prompt with n = 1 gives an Output, otherwise
        a list: for each prompt its choices.
        Raises UserError for a request that can never run.
        """
        many = isinstance(prompts, list) and bool(prompts) and isinstance(prompts[0], str | list)
        sampling = sampling_of(max_tokens, fields)
        streams: list[EventStream] = []
        try:
            for prompt in cast(list[Prompt], prompts if many else [prompts]):
                streams.append(self._submit_waiting(self._ids(prompt), sampling, n))
            outputs = [output for s in streams for output in collect(s, n)]
        finally:
            for stream in streams:
                stream.cancel()
        return outputs if many or n > 1 else outputs[0]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int = MAX_TOKENS,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **fields: Any,
    ) -> Output:
        """The model's next turn of a conversation, as its chat template writes it; tool calls stay
        text. Raises UserError as `generate`, and for messages that the template refuses."""
        if not all(isinstance(message, Mapping) for message in messages):
            raise UserError('messages must be a list such as [{"role": "user", "content": "Hi"}].')
        text = self.tokenizer.render_chat(messages, tools)
        return self.generate(self.tokenizer.encode(text, add_special=False), max_tokens, **fields)

    def stream(self, prompt: Prompt, max_tokens: int = MAX_TOKENS, **fields: Any) -> Iterator[str]:
        """The text of one output, piece by piece. Raises as `generate` does."""
        stream = self._submit_waiting(self._ids(prompt), sampling_of(max_tokens, fields))
        try:
            for event in stream:
                if event.text:
                    yield event.text
        finally:
            stream.cancel()

    async def astream(
        self, prompt: Prompt, max_tokens: int = MAX_TOKENS, **fields: Any
    ) -> AsyncIterator[str]:
        """`stream` for an event loop."""
        ids, sampling = self._ids(prompt), sampling_of(max_tokens, fields)
        while (stream := self._submitted(ids, sampling)) is None:
            await asyncio.sleep(RETRY_S)
        try:
            async for event in stream:
                if event.text:
                    yield event.text
        finally:
            stream.cancel()

    def stats(self) -> Stats:
        """Counters and gauges. Safe from any thread."""
        return self._loop.stats()

    def heartbeat_s(self) -> float:
        """Seconds since the loop last came round; infinite when it has died or was closed."""
        return self._loop.heartbeat_s()

    def reset_prefix_cache(self) -> None:
        """Forgets what prompts have left behind; running requests keep what they hold."""
        self._loop.reset_prefix_cache()

    def timeline(self) -> Trace | None:
        """What happened in the last traced step, None when there is none yet; the next step is
        traced because you ask. Safe from any thread."""
        return self._loop.timeline()

    def close(self, drain_s: float = 0.0) -> None:
        """Ends the engine: nothing new is taken, what is there may go on for `drain_s` seconds."""
        self._loop.close(drain_s)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check(self, ids: list[int], sampling: Sampling, n: int) -> None:
        """Raises UserError for what can never run."""
        check(sampling)
        if not ids:
            raise UserError("The prompt is empty. Give at least one token.")
        if n < 1:
            raise UserError(
                f"{n} choices of {sampling.max_tokens} tokens are nothing to run: ask for at least "
                "one choice."
            )
        for asked in (sampling.logprobs, sampling.prompt_logprobs):
            if asked is not None and not 0 <= asked <= RIVALS:
                raise UserError(
                    f"Log probabilities of {asked} rivals of each token were asked for; ask for 0 "
                    f"to {RIVALS}."
                )
        room = self.context - min(sampling.max_tokens, 1)
        if len(ids) > room:
            raise UserError(
                f"The prompt has {len(ids)} tokens, but the context has {self.context} positions, "
                "for prompt and output together. Shorten the prompt, or serve with a larger "
                "max_model_len or kv_memory."
            )
        for known in (ids, sampling.logit_bias, sampling.stop_token_ids):
            if known and not 0 <= min(known) <= max(known) < self.vocab:
                wrong = next(i for i in known if not 0 <= i < self.vocab)
                raise UserError(
                    f"Token id {wrong} is outside the vocabulary of {self.vocab} tokens."
                )

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
            raise UserError(f"The prompt {prompt!r} is neither text nor token ids.")
        ids = list(prompt)
        for token in ids:
            if not isinstance(token, Integral) or isinstance(token, bool):
                raise UserError(f"The prompt's {token!r} is no token id, a whole number.")
        return [int(token) for token in ids]

    def _submit_waiting(self, ids: list[int], sampling: Sampling, n: int = 1) -> EventStream:
        """Submits, after a wait for room in the queue. Raises UserError when it is closed."""
        while (stream := self._submitted(ids, sampling, n)) is None:
            time.sleep(RETRY_S)
        return stream

    def _submitted(self, ids: list[int], sampling: Sampling, n: int = 1) -> EventStream | None:
        """None when the queue is full. Raises UserError when it is closed."""
        try:
            return self.submit(ids, sampling, n)
        except QueueFull:
            if self._loop.state != "open":
                raise UserError("The engine is closed. Make a new one.") from None
            return None


def collect(stream: EventStream, n: int = 1) -> list[Output]:
    """Waits for all of a request's choices, from any thread but the engine's."""
    texts, ids = [""] * n, [[] for _ in range(n)]  # type: tuple[list[str], list[list[int]]]
    logprobs: list[list[TokenLogprob]] = [[] for _ in range(n)]
    outputs: dict[int, Output] = {}
    for event in stream:
        i = event.choice
        texts[i] += event.text
        ids[i] += event.ids
        logprobs[i] += event.logprobs
        if event.reason is not None:
            asked = logprobs[i] or None
            outputs[i] = Output(texts[i], ids[i], event.reason, event.stop, asked, event.error)
    return [outputs[i] for i in range(n)]
