"""POST /v1/chat/completions: a conversation, answered with text, reasoning and tool calls.

What a model's markup means is the parsers' business; here a reply's parts become JSON.
"""

import time
from collections.abc import Sequence
from typing import Any

from mkport.engine.parsers import Delta, joined
from mkport.engine.request import Accepted, Event
from mkport.engine.server import fields
from mkport.engine.server.answer import Job
from mkport.engine.server.errors import invalid
from mkport.engine.server.reply import Plan, plan
from mkport.engine.server.schema import ChatRequest
from mkport.engine.server.service import Service, Work
from mkport.engine.server.tokens import chat_logprobs
from mkport.engine.server.wire import Chunks, Usage, dumps, quote


class ChatJob(Job):
    """One call of the endpoint. Raises ApiError for fields that do not agree."""

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
        self._choices: list[_Choice] = []

    def prepare(self) -> list[Work]:
        """Renders, tokenizes and checks the conversation. Raises ApiError, naming the field."""
        request, engine = self._request, self._service.engine
        planned = plan(request, self._service)
        self._choices = [_Choice(planned) for _ in range(self._n)]
        most = request.max_completion_tokens
        sampling = fields.sampling(
            request,
            prompt_tokens=len(planned.ids),
            max_tokens=request.max_tokens if most is None else most,
            context=engine.context,
            vocab=engine.vocab,
            defaults=self._service.settings.defaults,
            param="messages",
            limit="max_tokens" if most is None else "max_completion_tokens",
            logprobs=self._top,
            grammar=planned.grammar,
            skip_special=planned.skip_special,
        )
        field = fields.grammar_field(request) or "tools"
        return [Work(planned.ids, sampling, self._n, field)]

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
        state = self._choices[choice]
        if event.reason is None and self._top is None and state.says(event.text):
            said = f'{{"content":{quote(event.text)}}}'
            return self._chunks.chunk(choice, said).encode()
        deltas = state.read(event)
        shown = self._logprobs(event)
        if shown is not None and not deltas:
            deltas = [Delta()]
        made = ""
        for delta in deltas:
            made += self._chunks.chunk(choice, _delta(delta), logprobs=shown)
            shown = None
        if event.reason is not None:
            made += self._chunks.chunk(choice, "{}", reason=state.reason)
        return made.encode()

    def closing(self) -> bytes:
        """The usage, if it is wanted."""
        return self._chunks.usage(self._usage).encode() if self._tells_usage else b""

    def take(self, choice: int, event: Event) -> None:
        """Adds the event to its choice."""
        self._usage.completion += len(event.ids)
        kept = self._choices[choice]
        kept.deltas += kept.read(event)
        kept.logprobs += (self._logprobs(event) or {}).get("content", ())

    def whole(self) -> bytes:
        """The answer as one object."""
        choices = [
            {
                "index": i,
                "message": _message(kept.deltas),
                "logprobs": None if self._top is None else {"content": kept.logprobs},
                "finish_reason": kept.reason,
            }
            for i, kept in enumerate(self._choices)
        ]
        return dumps({**self._about, "choices": choices, "usage": self._usage.as_dict()}).encode()

    def _logprobs(self, event: Event) -> dict[str, Any] | None:
        if self._top is None or not event.logprobs:
            return None
        tokenizer = self._service.engine.tokenizer
        return {"content": chat_logprobs(tokenizer, event.logprobs, self._top)}


class _Choice:
    """One answer as it grows."""

    def __init__(self, planned: Plan) -> None:
        self._parser = planned.parser()
        self._one_call = planned.one_call
        self._called = False
        self.reason: str | None = None  # as the client is told
        self.deltas: list[Delta] = []  # kept when it is not a stream
        self.logprobs: list[dict[str, Any]] = []

    def says(self, text: str) -> bool:
        """Whether a text is content as it stands, for sure: its parser need not read it."""
        return bool(text) and self._parser.is_content(text)

    def read(self, event: Event) -> list[Delta]:
        """What an event's text means."""
        deltas = self._parser.push(event.text) if event.text else []
        if event.reason is not None:
            deltas += self._parser.finish()
        if self._one_call:
            deltas = [delta for delta in deltas if not delta.index]
        self._called = self._called or any(delta.index is not None for delta in deltas)
        if event.reason is not None:
            # a call that a stop string cut is none to make, whatever was told of it
            cut = isinstance(event.stop, str) and self._parser.in_call
            done = self._called and event.reason == "stop" and not cut
            self.reason = "tool_calls" if done else event.reason
        return deltas


def _delta(delta: Delta) -> str:
    """A delta as JSON."""
    if delta.index is None:
        if delta.reasoning:
            return f'{{"reasoning_content":{quote(delta.reasoning)}}}'
        return f'{{"content":{quote(delta.content)}}}'
    function = f'"arguments":{quote(delta.arguments)}'
    if not delta.name:
        return f'{{"tool_calls":[{{"index":{delta.index},"function":{{{function}}}}}]}}'
    return (
        f'{{"tool_calls":[{{"index":{delta.index},"id":{quote(delta.id)},"type":"function",'
        f'"function":{{"name":{quote(delta.name)},{function}}}}}]}}'
    )


def _message(deltas: Sequence[Delta]) -> dict[str, Any]:
    """The message that the deltas are the pieces of."""
    reply = joined(deltas)
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["content"] = reply.content or None
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    return message
