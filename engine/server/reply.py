"""What a chat request asks of the reply: the prompt that leads to it, the grammar that it must
belong to, and the parser that reads it. The formats themselves are in `mkport.engine.parsers`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mkport.engine.parsers import Format, Parser, Wanted
from mkport.engine.request import Grammar
from mkport.engine.server import conversation, fields
from mkport.engine.server.errors import invalid
from mkport.engine.server.rendering import render
from mkport.engine.server.schema import ChatRequest
from mkport.engine.server.service import Service
from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError


@dataclass(frozen=True)
class Plan:
    """How one chat request is answered."""

    ids: list[int]  # [tokens] of the prompt
    grammar: Grammar | None
    skip_special: bool  # whether special tokens are left out of the text that the parser reads
    one_call: bool  # calls after the first are dropped
    parser: Callable[[], Parser]  # a new one for each choice


def plan(request: ChatRequest, service: Service) -> Plan:
    """Reads everything of a request that shapes the reply. Raises ApiError, naming the field."""
    tokenizer, form = service.engine.tokenizer, service.format
    messages = conversation.messages(request.messages)
    tools = conversation.tools(request.tools)
    choice = conversation.tool_choice(request.tool_choice, tools)
    rendered = render(
        service,
        messages,
        tools,
        conversation.template_variables(request.chat_template_kwargs, request.reasoning_effort),
        add_generation_prompt=request.add_generation_prompt,
        continue_final=bool(request.continue_final_message),
        add_special=bool(request.add_special_tokens),
    )
    thinking = form.opened is not None and rendered.text.rstrip().endswith(form.opened)
    # a model whose template never opens any reasoning was not taught to reason between markers
    reasons = form.opened is not None and form.opened in (tokenizer.chat_template or "")
    wanted = Wanted(
        tools=tools,
        choice=choice,
        parallel=request.parallel_tool_calls is not False,
        thinking=thinking,
        reasons=reasons,
        marker=partial(_marker, tokenizer),
    )
    names = [tool["function"]["name"] for tool in tools] if choice != "none" else []
    return Plan(
        rendered.ids,
        _grammar(request, form, wanted),
        not any(tokenizer.special_id(marker) is not None for marker in form.markers),
        not wanted.parallel,
        partial(form.parser, thinking=thinking, names=names),
    )


def _grammar(request: ChatRequest, form: Format, wanted: Wanted) -> Grammar | None:
    """The grammar for calls and for what the content must be. Raises ApiError."""
    own = fields.grammar(request)
    if own is not None and own.kind in ("regex", "lark"):
        if wanted.forced:
            raise invalid(
                "structured_outputs says what the text must be, but tool_choice wants a call "
                "instead of text: send one of them.",
                "tool_choice",
            )
        return own
    answer: Mapping[str, Any] | None = None
    if own is not None:
        answer = {"type": "object"} if own.kind == "json_object" else _object(own.text)
    if answer is None and not wanted.tools:
        return None
    try:
        return form.grammar(Wanted(**{**vars(wanted), "answer": answer}))
    except UserError as error:
        raise invalid(str(error), "tool_choice") from None


def _object(text: str) -> Mapping[str, Any]:
    """A JSON schema that was sent as text or as an object. Raises ApiError for anything else."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise invalid("structured_outputs.json must be a JSON schema, an object.")
    return schema


def _marker(tokenizer: Tokenizer, text: str) -> str:
    """A marker in llguidance's Lark: a special token by its id, other text as it is."""
    token = tokenizer.special_id(text)
    return json.dumps(text) if token is None else f"<[{token}]>"
