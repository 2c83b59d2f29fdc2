"""Replies in the format of Llama 3: calls are JSON objects, a semicolon between them, with or
without <|python_tag|> at their head; a reply that begins otherwise is text.

Source: Meta's page on the prompt format of Llama 3.1, "JSON based tool calling".
"""

from collections.abc import Collection, Iterator

from mkport.engine.parsers.calls import CallReader
from mkport.engine.parsers.deltas import Delta, Parser

TAG = "<|python_tag|>"


class Llama3Parser(Parser):
    """An object counts as a call if it names a tool that exists: without a tag it may as well be an
    answer in JSON. What is no call stays in the content as it is."""

    def __init__(self, thinking: bool = False, names: Collection[str] | None = None) -> None:
        """`names` of the tools: without a tag, only they are called, and if there are none nothing
        is a call; None: any name will do. `thinking` does not occur in this format."""
        super().__init__()
        self._names = names
        self._calls = 0
        self._lead = ""  # what was read before the call that is being read
        self._call = CallReader(0)

    @property
    def in_call(self) -> bool:
        """See `Parser`."""
        return self._call.named and self._call.state == "open"

    def _start(self, final: bool) -> Iterator[Delta]:
        text = self._text.lstrip()
        if text.startswith((TAG, "{")):
            self._lead = self._take(len(self._text) - len(text))
            self._lead += self._take(len(TAG)) if text.startswith(TAG) else ""
            self._mode = self._tagged if TAG in self._lead else self._begin
        elif final or not TAG.startswith(text):
            self._mode = self._content
        yield from ()

    def _tagged(self, final: bool) -> Iterator[Delta]:
        text = self._text.lstrip()
        if text or final:
            self._lead += self._take(len(self._text) - len(text))
            self._mode = self._begin
        yield from ()

    def _begin(self, final: bool) -> Iterator[Delta]:
        self._call = CallReader(
            self._calls, None if TAG in self._lead and self._names else self._names
        )
        self._mode = self._in_call
        yield from ()

    def _in_call(self, final: bool) -> Iterator[Delta]:
        count, deltas = self._call.read(self._text)
        self._take(count)
        yield from deltas
        state = self._call.state
        if not self._call.named and (final or state == "broken"):
            yield Delta(content=self._lead + self._call.text)
            self._mode = self._content
        elif state == "done":
            self._calls += 1
            self._lead, self._mode = "", self._between
        elif final or state == "broken":
            yield from self._call.rest(self._take(len(self._text)))

    def _between(self, final: bool) -> Iterator[Delta]:
        text = self._text.lstrip()
        rest = text.removeprefix(";").lstrip()
        if rest.startswith("{"):
            self._lead = self._take(len(self._text) - len(rest))
            self._mode = self._begin
        elif rest:
            self._text, self._mode = text, self._content
        elif final:
            self._text = ""
        yield from ()

    def _content(self, final: bool) -> Iterator[Delta]:
        text, marker = self._until((TAG,), final)
        if text:
            yield Delta(content=text)
        if marker:
            self._mode = self._start
