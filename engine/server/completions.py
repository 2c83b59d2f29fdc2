"""POST /v1/completions: plain prompts, as text or token ids, one or many, continued as they are."""

import time
from typing import Any

from mkport.engine.request import Accepted, Event
from mkport.engine.server import fields
from mkport.engine.server.answer import Job
from mkport.engine.server.errors import invalid, too_long
from mkport.engine.server.schema import CompletionRequest
from mkport.engine.server.service import Service, Work
from mkport.engine.server.tokens import CompletionLogprobs
from mkport.engine.server.wire import Chunks, Usage, dumps, quote
from mkport.errors import UserError


class CompletionJob(Job):
    """One call of the endpoint. A choice is a dict that holds what `whole` will say of it. Raises
    ApiError for fields that do not agree."""

    def __init__(self, request: CompletionRequest, service: Service, id: str) -> None:
        fields.check(request)
        if request.max_tokens == 0 and not request.echo:
            raise invalid("max_tokens must be at least 1 without echo.", "max_tokens")
        self._request, self._service = request, service
        self.stream = bool(request.stream)
        self._n = request.n or 1
        self._silent = request.max_tokens == 0  # the prompt alone is wanted
        self._usage = Usage()
        options = request.stream_options
        self._tells_usage = options is not None and bool(options.include_usage)
        each = self._tells_usage and options is not None and bool(options.continuous_usage_stats)
        self._about: dict[str, Any] = {
            "id": f"cmpl-{id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.engine.name,
        }
        self._chunks = Chunks(self._about, "text", self._usage if each else None)
        self._prompts: list[list[int]] = []
        self._texts: list[str] = []  # of the prompts, for echo
        self._echoed: dict[int, tuple[str, dict[str, Any] | None]] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def prepare(self) -> list[Work]:
        """Tokenizes and checks every prompt. Raises ApiError, naming the field."""
        request, engine = self._request, self._service.engine
        grammar = fields.grammar(request)
        works = []
        for prompt in self._given():
            ids = self._ids(prompt)
            if request.echo:
                text = prompt if isinstance(prompt, str) else engine.tokenizer.decode(ids, False)
                self._texts.append(text)
            self._prompts.append(ids)
            sampling = fields.sampling(
                request,
                prompt_tokens=len(ids),
                max_tokens=request.max_tokens,
                context=engine.context,
                vocab=engine.vocab,
                defaults=self._service.settings.defaults,
                param="prompt",
                logprobs=request.logprobs,
                prompt_logprobs=request.logprobs if request.echo else None,
                grammar=grammar,
            )
            works.append(Work(ids, sampling, self._n, fields.grammar_field(request)))
        return works

    def accepted(self, prompt: int, accepted: Accepted) -> None:
        """Counts the prompt, and makes its echo."""
        self._usage.accept(accepted)
        for choice in range(prompt * self._n, (prompt + 1) * self._n):
            if self._request.logprobs is not None:
                tokenizer = self._service.engine.tokenizer
                self._logprobs[choice] = CompletionLogprobs(tokenizer, self._request.logprobs)
            if self._request.echo:
                shown = None
                if self._request.logprobs is not None:
                    ids = self._prompts[prompt]
                    known = accepted.prompt_logprobs or (None,) * len(ids)
                    shown = self._logprobs[choice].add(ids, known)
                self._echoed[choice] = (self._texts[prompt], shown)

    def opening(self) -> bytes:
        """Nothing: text has no role."""
        return b""

    def chunk(self, choice: int, event: Event) -> bytes:
        """The event's text; before a choice's first, the echo of its prompt."""
        made = ""
        if choice in self._echoed:
            text, shown = self._echoed.pop(choice)
            made = self._chunks.chunk(choice, quote(text), logprobs=shown)
        text, shown = self._told(choice, event)
        if text or shown is not None or event.reason is not None:
            made += self._chunks.chunk(
                choice, quote(text), reason=self._reason(event), logprobs=shown
            )
        return made.encode()

    def closing(self) -> bytes:
        """The usage, if it is wanted."""
        return self._chunks.usage(self._usage).encode() if self._tells_usage else b""

    def take(self, choice: int, event: Event) -> None:
        """Adds the event to its choice."""
        kept = self._choices.setdefault(choice, {"text": [], "logprobs": [], "reason": None})
        if choice in self._echoed:
            echo, shown = self._echoed.pop(choice)
            kept["text"].append(echo)
            kept["logprobs"].append(shown)
        text, shown = self._told(choice, event)
        kept["text"].append(text)
        kept["logprobs"].append(shown)
        kept["reason"] = self._reason(event) or kept["reason"]

    def whole(self) -> bytes:
        """The answer as one object."""
        choices = [
            {
                "index": choice,
                "text": "".join(kept["text"]),
                "logprobs": _joined(kept["logprobs"]),
                "finish_reason": kept["reason"],
            }
            for choice, kept in sorted(self._choices.items())
        ]
        return dumps({**self._about, "choices": choices, "usage": self._usage.as_dict()}).encode()

    def _told(self, choice: int, event: Event) -> tuple[str, dict[str, Any] | None]:
        """An event's text and log probabilities; nothing when only the prompt is wanted."""
        if self._silent:
            return "", None
        self._usage.completion += len(event.ids)
        wanted = self._logprobs.get(choice)
        if wanted is None or not event.ids:
            return event.text, None
        return event.text, wanted.add(event.ids, event.logprobs)

    def _reason(self, event: Event) -> str | None:
        return "length" if self._silent and event.reason is not None else event.reason

    def _given(self) -> list[str | list[int]]:
        """The prompts one by one. Raises ApiError for none, or too many."""
        prompt, most = self._request.prompt, self._service.settings.max_prompts
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise invalid("prompt must not be empty.", "prompt")
        if isinstance(prompt[0], int):
            return [prompt]
        if len(prompt) > most:
            raise invalid(f"prompt: at most {most} prompts are taken in one call.", "prompt")
        return list(prompt)

    def _ids(self, prompt: str | list[int]) -> list[int]:
        """A prompt's token ids. Raises ApiError for one that is empty, too long or not a text."""
        engine = self._service.engine
        if isinstance(prompt, str):
            if len(prompt) > self._service.most_characters:
                raise too_long(engine.context, f"more than {engine.context}", "prompt")
            try:
                ids = engine.tokenizer.encode(prompt, self._request.add_special_tokens is not False)
            except UserError as error:
                raise invalid(str(error), "prompt") from None
        else:
            ids = fields.known(prompt, engine.vocab, "prompt")
        if not ids:
            raise invalid("prompt must not be empty.", "prompt")
        return ids


def _joined(parts: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Log probabilities of one choice, put together again."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    return {name: [item for part in found for item in part[name]] for name in found[0]}
