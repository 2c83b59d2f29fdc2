"""POST /v1/chat/completions: a conversation, answered with text, reasoning and tool calls."""

import time
from typing import Any

from mkport.engine.request import Accepted, Event
from mkport.engine.server import conversation, fields
from mkport.engine.server.answer import Job
from mkport.engine.server.errors import invalid
from mkport.engine.server.rendering import render
from mkport.engine.server.schema import ChatRequest
from mkport.engine.server.service import Service, Work
from mkport.engine.server.tokens import chat_logprobs
from mkport.engine.server.wire import Chunks, Usage, dumps, quote


class ChatJob(Job):
    """One call of the endpoint."""

    def __init__(self, request: ChatRequest, service: Service, id: str) -> None:
        fields.check(request)
        if request.top_logprobs and not request.logprobs:
            raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs")
        self._request, self._service = request, service
        self.stream = bool(request.stream)
        self._n = request.n or 1
        self._top = (request.top_logprobs or 0) if request.logprobs else None
        self._usage = Usage()
        options = request.stream_options
        self._tells_usage = options is not None and bool(options.include_usage)
        each = self._tells_usage and options is not None and bool(options.continuous_usage_stats)
        self._about: dict[str, Any] = {
            "id": f"chatcmpl-{id}",
            "object": "chat.completion.chunk" if self.stream else "chat.completion",
            "created": int(time.time()),
            "model": service.engine.name,
        }
        self._chunks = Chunks(self._about, "delta", self._usage if each else None)
        self._choices = [_Choice() for _ in range(self._n)]

    def prepare(self) -> list[Work]:
        """Renders, tokenizes and checks the conversation."""
        request, engine = self._request, self._service.engine
        messages = conversation.messages(request.messages)
        tools = conversation.tools(request.tools)
        conversation.tool_choice(request.tool_choice, tools)
        variables = conversation.template_variables(
            request.chat_template_kwargs, request.reasoning_effort
        )
        ids = render(
            self._service,
            messages,
            tools,
            variables,
            add_generation_prompt=request.add_generation_prompt,
            continue_final=bool(request.continue_final_message),
            add_special=bool(request.add_special_tokens),
        ).ids
        most = request.max_completion_tokens
        sampling = fields.sampling(
            request,
            prompt_tokens=len(ids),
            max_tokens=request.max_tokens if most is None else most,
            context=engine.context,
            vocab=engine.vocab,
            defaults=self._service.settings.defaults,
            param="messages",
            logprobs=self._top,
            grammar=fields.grammar(request),
        )
        return [Work(ids, sampling, self._n)]

    def accepted(self, prompt: int, accepted: Accepted) -> None:
        """Counts the prompt."""
        self._usage.accept(accepted)

    def opening(self) -> bytes:
        """The role, for every choice."""
        role = '{"role":"assistant","content":""}'
        return "".join(self._chunks.chunk(choice, role) for choice in range(self._n)).encode()

    def chunk(self, choice: int, event: Event) -> bytes:
        """What the event changes."""
        self._usage.completion += len(event.ids)
        shown = self._logprobs(event)
        made = ""
        if event.text or shown is not None:
            made = self._chunks.chunk(
                choice,
                f'{{"content":{quote(event.text)}}}',
                logprobs=None if shown is None else {"content": shown},
            )
        if event.reason is not None:
            made += self._chunks.chunk(choice, "{}", reason=event.reason)
        return made.encode()

    def closing(self) -> bytes:
        """The usage, if it is wanted."""
        return self._chunks.usage(self._usage).encode() if self._tells_usage else b""

    def take(self, choice: int, event: Event) -> None:
        """Adds the event to its choice."""
        self._usage.completion += len(event.ids)
        kept = self._choices[choice]
        kept.text.append(event.text)
        kept.logprobs += self._logprobs(event) or []
        kept.reason = event.reason or kept.reason

    def whole(self) -> bytes:
        """The answer as one object."""
        return dumps(
            {
                **self._about,
                "choices": [
                    {
                        "index": i,
                        "message": {"role": "assistant", "content": "".join(kept.text)},
                        "logprobs": None if self._top is None else {"content": kept.logprobs},
                        "finish_reason": kept.reason,
                    }
                    for i, kept in enumerate(self._choices)
                ],
                "usage": self._usage.as_dict(),
            }
        ).encode()

    def _logprobs(self, event: Event) -> list[dict[str, Any]] | None:
        if self._top is None or not event.logprobs:
            return None
        return chat_logprobs(self._service.engine.tokenizer, event.logprobs, self._top)


class _Choice:
    """One answer as it grows, when it is not a stream."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self.reason: str | None = None
