"""What a client sends as messages and tools, checked and brought into the shape templates expect.

How a model writes them is the chat template's business; what a reply holds, the parser's.

Source: OpenAI's API reference: `messages`, `tools` and `tool_choice` of chat completions.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mkport.engine.server.errors import ApiError, invalid

MAX_MESSAGES = 10_000
MAX_TOOLS = 512
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text"}  # each its field
OWN_PARTS = TEXT_PARTS | {"refusal": "refusal"}  # of an assistant's
THOUGHT = "thinking"  # the type of a part of an assistant's that is not said, and its field
# What a request may not hand to a template: these are the server's own to say.
RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "source")

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}")


def messages(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with their text as one string each. Roles are the template's to judge.

    Raises ApiError naming the first message that is not one.
    """
    if len(given) > MAX_MESSAGES:
        raise invalid(f"messages: at most {MAX_MESSAGES} are taken.", "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(given)]


def characters(given: Sequence[Mapping[str, Any]]) -> int:
    """Characters of all the messages' text: what a template will at least be asked to write."""
    return sum(len(message.get("content") or "") for message in given)


def tools(given: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The functions that the model may call. Raises ApiError naming the first that is not one."""
    if len(given or ()) > MAX_TOOLS:
        raise invalid(f"tools: at most {MAX_TOOLS} are taken.", "tools")
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(given or ())]


def tool_choice(given: Any, functions: Sequence[Mapping[str, Any]]) -> str:
    """ "auto", "none", "required", or "=NAME" for the one function that must be called.

    Raises ApiError when a call is demanded of a function that is not there.
    """
    names = [tool["function"]["name"] for tool in functions]
    if given is None:
        return "auto" if functions else "none"
    if isinstance(given, str):
        if given == "required" and not names:
            raise invalid("tool_choice is required, but there are no tools.", "tool_choice")
        return given if names else "none"
    function = given.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if given.get("type") != "function" or not isinstance(name, str):
        raise invalid(
            'tool_choice must be "auto", "none", "required", or '
            '{"type": "function", "function": {"name": ...}}.',
            "tool_choice",
        )
    if name not in names:
        raise invalid(f"tool_choice: there is no tool {name[:80]!r} in tools.", "tool_choice")
    return f"={name}"


def template_variables(given: Mapping[str, Any] | None, effort: str | None) -> dict[str, Any]:
    """`chat_template_kwargs` and `reasoning_effort`, for the template. Raises ApiError for a name
    that is the server's own."""
    for name in given or ():
        if name in RESERVED or name.startswith("_"):
            raise invalid(f"chat_template_kwargs: {name!r} is not the request's to set.")
    return {**({} if effort is None else {"reasoning_effort": effort}), **(given or {})}


def _message(message: Mapping[str, Any], place: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise invalid(f"{place}.role must be text, such as user.", f"{place}.role")
    calls = message.get("tool_calls")
    content = message.get("content")
    if content is None:
        if role != "assistant":
            raise invalid(
                f"{place}.content is missing; only an assistant's may be null.", f"{place}.content"
            )
        text = ""
    elif isinstance(content, str):
        text = content
    elif isinstance(content, list):
        own = role == "assistant"
        thought = [own and isinstance(p, Mapping) and p.get("type") == THOUGHT for p in content]
        parts = [
            _part(part, f"{place}.content[{i}]", own, thought[i]) for i, part in enumerate(content)
        ]
        text = "\n".join(p for p, silent in zip(parts, thought, strict=True) if not silent)
        if any(thought) and message.get("reasoning_content") is None:
            said = (p for p, silent in zip(parts, thought, strict=True) if silent)
            message = {**message, "reasoning_content": "\n".join(said)}
    else:
        raise invalid(f"{place}.content must be text or a list of parts.", f"{place}.content")
    for field in ("name", "tool_call_id", "reasoning_content", "refusal"):
        if not isinstance(message.get(field), str | None):
            raise invalid(f"{place}.{field} must be text.", f"{place}.{field}")
    plain = {name: value for name, value in message.items() if value is not None}
    if calls is not None:
        if not isinstance(calls, list):
            raise invalid(f"{place}.tool_calls must be a list.", f"{place}.tool_calls")
        plain["tool_calls"] = [
            _call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    return {**plain, "content": text}


def _part(part: Any, place: str, own: bool, thought: bool) -> str:
    """The text of a part, `own` if an assistant's, which may also be a thought."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise invalid(f"{place} must be an object with a type.", place)
    fields = {THOUGHT: THOUGHT} if thought else OWN_PARTS if own else TEXT_PARTS
    if kind not in fields:
        raise invalid(
            f"{place} is of type {kind[:40]!r}: this server reads text only, no images, sound or "
            "files. Send parts of type text.",
            place,
        )
    text = part.get(fields[kind])
    if not isinstance(text, str):
        raise invalid(f"{place}.{fields[kind]} must be text.", f"{place}.{fields[kind]}")
    return text


def _call(call: Any, place: str) -> dict[str, Any]:
    """A call as the history has it. The tool need not be in `tools` any more, and its arguments
    need not be JSON: the model may have written anything."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise _bad_call(place)
    arguments = function.get("arguments", "")
    if not isinstance(function.get("name"), str) or not isinstance(arguments, str | dict | None):
        raise _bad_call(place)
    return {**call, "type": "function", "function": {**function, "arguments": _parsed(arguments)}}


def _parsed(arguments: Any) -> Any:
    """Arguments as an object, which templates write as JSON; as they are where they are none."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _bad_call(place: str) -> ApiError:
    return invalid(
        f"{place} must be an object with a function that has a name and arguments as text.", place
    )


def _tool(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise invalid(
            f'{place} must be {{"type": "function", "function": {{...}}}}; other tools are not '
            "implemented.",
            place,
        )
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(
            f"{place}.function.name must be 1 to 256 letters, digits, _ . : / or -.",
            f"{place}.function.name",
        )
    if not isinstance(function.get("description"), str | None):
        raise invalid(f"{place}.function.description must be text.", f"{place}.function")
    if not isinstance(function.get("parameters"), dict | None):
        raise invalid(
            f"{place}.function.parameters must be a JSON schema, an object.", f"{place}.function"
        )
    return dict(tool)
