"""Replies in the format of Cohere's models: reasoning, text and actions, each between its own
markers; an action is a JSON array of calls.

Source: the chat templates of Command R7B, Command A and North Mini Code.
"""

from collections.abc import Collection, Iterator

from mkport.engine.parsers.calls import CallReader
from mkport.engine.parsers.deltas import Delta, Parser

THINKING, END_THINKING = "<|START_THINKING|>", "<|END_THINKING|>"
TEXT, END_TEXT = "<|START_TEXT|>", "<|END_TEXT|>"
RESPONSE, END_RESPONSE = "<|START_RESPONSE|>", "<|END_RESPONSE|>"  # older models' names for it
ACTION, END_ACTION = "<|START_ACTION|>", "<|END_ACTION|>"
STARTS = (THINKING, TEXT, RESPONSE, ACTION)
MARKERS = (*STARTS, END_THINKING, END_TEXT, END_RESPONSE, END_ACTION)


class CohereParser(Parser):
    """Text between the blocks counts as content, white space there and at the end of a block as
    nothing. A block also ends where another one begins. What begins like an action but is none
    stays in the content."""

    def __init__(self, thinking: bool = False, names: Collection[str] | None = None) -> None:
        """`thinking`: the prompt has opened the reasoning. `names` of the tools: if there are none,
        nothing is a call; else any name will do, for the client to judge."""
        super().__init__()
        self._names = None if names or names is None else ()
        self._mode = self._reasoning if thinking else self._start
        self._trim = thinking  # white space to come is dropped
        self._calls = 0
        self._lead = ""  # of an action, what was read before the call that is being read
        self._call = CallReader(0, self._names)

    @property
    def in_call(self) -> bool:
        """See `Parser`."""
        return self._call.named and self._call.state == "open"

    def _start(self, final: bool) -> Iterator[Delta]:
        self._trimmed()
        text, marker = self._until(MARKERS, final, blank=True)
        if text:
            yield Delta(content=text)
        if marker:
            self._lead = self._take(len(marker))
            modes = {THINKING: self._reasoning, ACTION: self._action}
            modes |= {TEXT: self._content, RESPONSE: self._content}
            self._mode, self._trim = modes.get(marker, self._start), True

    def _trimmed(self) -> None:
        if self._trim:
            self._text = self._text.lstrip()
            self._trim = not self._text

    def _reasoning(self, final: bool) -> Iterator[Delta]:
        self._trimmed()
        text, marker = self._until((END_THINKING, *STARTS), final, blank=True)
        if text:
            yield Delta(reasoning=text)
        if marker:
            self._mode, self._trim = self._start, True

    def _content(self, final: bool) -> Iterator[Delta]:
        text, marker = self._until((END_TEXT, END_RESPONSE, *STARTS), final, blank=True)
        if text:
            yield Delta(content=text)
        if marker:
            self._mode, self._trim = self._start, True

    def _action(self, final: bool) -> Iterator[Delta]:
        """Before the first call."""
        text = self._text.lstrip()
        if text.startswith("["):
            self._lead += self._take(len(self._text) - len(text) + 1)
            self._mode = self._between
        elif text or final:
            self._mode = self._in_call  # one call without brackets, or none
        yield from ()

    def _in_call(self, final: bool) -> Iterator[Delta]:
        count, deltas = self._call.read(self._text)
        self._take(count)
        yield from deltas
        state = self._call.state
        if not self._call.named and (final or state == "broken"):
            yield Delta(content=self._lead + self._call.text)
            self._call, self._mode, self._trim = (
                CallReader(self._calls, self._names),
                self._start,
                False,
            )
        elif state == "done":
            self._calls += 1
            self._lead, self._mode = "", self._between
            self._call = CallReader(self._calls, self._names)
        elif final or state == "broken":
            self._mode = self._broken

    def _between(self, final: bool) -> Iterator[Delta]:
        """After the opening bracket or a call."""
        text = self._text.lstrip()
        rest = text.removeprefix(",").lstrip()
        if rest.startswith("{"):
            self._lead += self._take(len(self._text) - len(rest))
            self._mode = self._in_call
        elif rest or final:
            self._mode = self._broken
        yield from ()

    def _broken(self, final: bool) -> Iterator[Delta]:
        """Up to the action's end: nothing but a bracket if all is well."""
        text, marker = self._until((END_ACTION,), final)
        yield from self._call.rest(text)
        if marker:
            self._call = CallReader(self._calls, self._names)
            self._mode = self._start
