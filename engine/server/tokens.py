"""Tokens as a client reads them: their text, their exact bytes, their log probabilities.

Source: OpenAI's API reference: `logprobs` of chat completions and of completions.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from mkport.engine.request import TokenLogprob
from mkport.engine.tokenizer import Tokenizer


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token's text; the part of a character that it may be shows as U+FFFD."""
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def chat_logprobs(
    tokenizer: Tokenizer, tokens: Iterable[TokenLogprob], top: int
) -> list[dict[str, Any]]:
    """As the chat endpoint writes them: an object a token, its `top` rivals inside."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        raw = tokenizer.token_bytes(token)
        return {
            "token": raw.decode("utf-8", "replace"),
            "logprob": logprob,
            "bytes": list(raw),
        }

    return [
        {**one(t.id, t.logprob), "top_logprobs": [one(*rival) for rival in t.top[:top]]}
        for t in tokens
    ]


class CompletionLogprobs:
    """As the completions endpoint writes them: four lists, one entry a token.

    Offsets are those of each token's text in the text so far, so one object serves one choice.
    """

    def __init__(self, tokenizer: Tokenizer, top: int) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._offset = 0

    def add(self, tokens: Sequence[int], known: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        """The lists [tokens] for the ids `tokens` [tokens] and what is `known` of each; a prompt's
        first one has no probability."""
        texts: list[str] = []
        offsets: list[int] = []
        tops: list[dict[str, float] | None] = []
        for token, logprob in zip(tokens, known, strict=True):
            texts.append(token_text(self._tokenizer, token))
            offsets.append(self._offset)
            self._offset += len(texts[-1])
            tops.append(None if logprob is None else self._rivals(logprob))
        return {
            "text_offset": offsets,
            "token_logprobs": [None if known is None else known.logprob for known in known],
            "tokens": texts,
            "top_logprobs": tops,
        }

    def _rivals(self, logprob: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens by text, the chosen one among them as the legacy endpoint has it."""
        rivals = logprob.top[: self._top]
        found = {token_text(self._tokenizer, token): value for token, value in rivals}
        found.setdefault(token_text(self._tokenizer, logprob.id), logprob.logprob)
        return found
