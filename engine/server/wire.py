"""The bytes of answers: server-sent chunks, whose constant parts are made once a request, and the
usage object. No pydantic here: a chunk is made for every token.

Source: OpenAI's API reference (streaming), as server-sent events of the HTML standard.
"""

import json
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii
from typing import Any

from mkport.engine.request import Accepted

quote = encode_basestring_ascii  # text as a JSON string


def dumps(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class Usage:
    """The tokens of a request, counted as they come."""

    def __init__(self) -> None:
        self.prompt = 0
        self.cached = 0
        self.completion = 0

    def accept(self, accepted: Accepted) -> None:
        """Adds a prompt."""
        self.prompt += accepted.prompt_tokens
        self.cached += accepted.cached_tokens

    def as_dict(self) -> dict[str, Any]:
        """The usage object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Chunks:
    """The chunks of one stream. `about` is what all begin with: id, object, created, model; `field`
    is what a choice carries: "delta" or "text"."""

    def __init__(self, about: Mapping[str, Any], field: str, usage: Usage | None) -> None:
        self._head = f'data: {dumps(about)[:-1]},"choices":['
        self._field = field
        self._usage = usage  # told in every chunk when it is there
        self._heads: dict[int, str] = {}

    def chunk(
        self, choice: int, value: str, *, reason: str | None = None, logprobs: Any = None
    ) -> str:
        """One chunk of a choice; `value` is JSON already."""
        head = self._heads.get(choice)
        if head is None:
            head = f'{self._head}{{"index":{choice},"{self._field}":'
            self._heads[choice] = head
        if logprobs is None and reason is None and self._usage is None:
            return f'{head}{value},"finish_reason":null}}]}}\n\n'
        shown = "" if logprobs is None else f',"logprobs":{dumps(logprobs)}'
        ended = "null" if reason is None else quote(reason)
        usage = "" if self._usage is None else f',"usage":{dumps(self._usage.as_dict())}'
        return f'{head}{value}{shown},"finish_reason":{ended}}}]{usage}}}\n\n'

    def usage(self, usage: Usage) -> str:
        """The last chunk: no choice, only the usage."""
        return f'{self._head}],"usage":{dumps(usage.as_dict())}}}\n\n'
