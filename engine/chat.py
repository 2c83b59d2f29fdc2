"""Tools for chat templates that know none: a conversation's tools, calls and results are written
into the messages' text, in the form that `parsers.hermes` reads. Templates that take tools write
their own form, and nothing here is used."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

Message = Mapping[str, Any]

OFFER = """You may call functions to help with the request. These are the functions, one a line:
<tools>
{tools}
</tools>
To call one, write its name and its arguments as JSON:
<tool_call>
{{"name": "NAME", "arguments": {{"PARAMETER": "VALUE"}}}}
</tool_call>
What it returns is given to you between <tool_response> and </tool_response>."""


def has_tools(messages: Sequence[Message], tools: Sequence[Message] | None) -> bool:
    """Whether a conversation offers, makes or answers calls."""
    return bool(tools) or any(m.get("tool_calls") or m.get("role") == "tool" for m in messages)


def written_out(messages: Sequence[Message], tools: Sequence[Message] | None) -> list[Message]:
    """The conversation with nothing in it but roles and text.

    `tools` and calls are in OpenAI's form; a call's arguments may be an object or text, which is
    kept as it is even if it is not JSON. The same conversation, longer, begins with the same text.
    """
    plain = list(_plain(messages))
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    offer = OFFER.format(tools=lines)
    if plain and plain[0]["role"] == "system":
        first = {"role": "system", "content": f"{plain[0]['content']}\n\n{offer}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": offer}, *plain]


def _plain(messages: Sequence[Message]) -> Iterator[Message]:
    for is_result, group in groupby(messages, lambda message: message.get("role") == "tool"):
        if is_result:  # the results of one reply's calls are one message
            results = "\n".join(_result(message) for message in group)
            yield {"role": "user", "content": results}
            continue
        for message in group:
            text = message.get("content") or ""
            calls = [_call(call["function"]) for call in message.get("tool_calls") or ()]
            yield {"role": message.get("role"), "content": "\n".join([text][: bool(text)] + calls)}


def _call(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments") or {}
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _result(message: Message) -> str:
    return f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
