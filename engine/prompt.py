"""A person's words as the token ids that a model expects: in its chat template, or as they are."""

from collections.abc import Sequence
from typing import Any

from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError


def encode_prompt(
    tokenizer: Tokenizer, text: str, chat: bool | None = None, system: str | None = None
) -> list[int]:
    """Token ids of one prompt: [tokens].

    `chat` puts the text into the checkpoint's chat template as a user's message; None does so where
    there is a template. `system` is a message before it. Raises UserError when a chat is asked for
    without a template, or a system message without a chat.
    """
    if chat is None:
        chat = tokenizer.has_chat_template
    if not chat:
        if system is not None:
            raise UserError(
                "A system message needs a chat template; leave out --system, or --raw if the "
                "checkpoint has a template."
            )
        return tokenizer.encode(text)
    messages: Sequence[dict[str, Any]] = [{"role": "user", "content": text}]
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    return tokenizer.encode(tokenizer.render_chat(messages), add_special=False)
