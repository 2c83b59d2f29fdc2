"""A checked conversation as the token ids that a model reads, by the checkpoint's own template."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mkport.engine.server.conversation import characters
from mkport.engine.server.errors import invalid, too_long
from mkport.engine.server.service import Service
from mkport.errors import UserError


class Rendered(NamedTuple):
    """A conversation as the model reads it."""

    text: str
    ids: list[int]  # [tokens] of it


def render(
    service: Service,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    variables: Mapping[str, Any],
    *,
    add_generation_prompt: bool | None = None,
    continue_final: bool = False,
    add_special: bool = False,
) -> Rendered:
    """Renders and tokenizes; slow for long conversations, so call it in a thread.

    `continue_final` leaves the last message open, so that the model goes on with it. Raises
    ApiError for a conversation that the template refuses or that is certainly too long.
    """
    engine = service.engine
    certain = f"more than {engine.context}"
    if characters(messages) > service.most_characters:
        raise too_long(engine.context, certain, "messages")
    if continue_final and add_generation_prompt:
        raise invalid("Send add_generation_prompt or continue_final_message, not both.")
    opens = not continue_final if add_generation_prompt is None else add_generation_prompt
    try:
        text = engine.tokenizer.render_chat(messages, tools or None, opens, **variables)
        if continue_final:
            text = _open(text, str(messages[-1].get("content") or ""))
        if len(text) > service.most_characters:
            raise too_long(engine.context, certain, "messages")
        return Rendered(text, engine.tokenizer.encode(text, add_special))
    except (UserError, TypeError) as error:
        raise invalid(str(error), "messages") from None


def _open(text: str, last: str) -> str:
    """The text up to the end of the last message. Raises ApiError if it is not to be found."""
    at = text.rfind(last.strip())
    if at < 0 or not last.strip():
        raise invalid("continue_final_message: the template does not show the last message's text.")
    return text[: at + len(last.strip())]
