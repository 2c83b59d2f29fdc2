"""Replies in the format of Hermes and Qwen, with ChatML turns: reasoning in <think>, calls as one
JSON object each in <tool_call>, and text.

Source: NousResearch's Hermes-Function-Calling, and the chat templates of Qwen3.
"""

from collections.abc import Collection, Iterator

from mkport.engine.parsers.calls import CallReader
from mkport.engine.parsers.deltas import Delta, Parser

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"


class HermesParser(Parser):
    """White space between the parts belongs to none of them. What begins like a call but is none
    stays in the content."""

    def __init__(self, thinking: bool = False, names: Collection[str] | None = None) -> None:
        """`thinking`: the prompt has opened the reasoning. `names` of the tools: if there are none,
        nothing is a call; else any name will do, for the client to judge."""
        super().__init__()
        self._names = None if names or names is None else ()
        self._trim = thinking  # white space to come is dropped
        self._mode = self._reasoning if thinking else self._start
        self._calls = 0
        self._call = CallReader(0, self._names)

    def _is_content(self, text: str) -> bool:
        plain = "<" not in text and not text[-1].isspace()
        return plain and not self._trim and self._mode == self._content

    @property
    def in_call(self) -> bool:
        """See `Parser`."""
        return self._call.named and self._call.state == "open"

    def _start(self, final: bool) -> Iterator[Delta]:
        text = self._text.lstrip()
        if text.startswith(THINK):
            self._text, self._trim = text.removeprefix(THINK), True
            self._mode = self._reasoning
        elif final or not THINK.startswith(text):
            self._mode = self._content
        yield from ()

    def _reasoning(self, final: bool) -> Iterator[Delta]:
        text, marker = self._trimmed(END_THINK, final)
        if text:
            yield Delta(reasoning=text)
        if marker:
            self._take(len(END_THINK))
            self._mode, self._trim = self._content, True

    def _content(self, final: bool) -> Iterator[Delta]:
        text, marker = self._trimmed(CALL, final)
        if text:
            yield Delta(content=text)
        if marker:
            self._take(len(CALL))
            self._mode, self._call = self._in_call, CallReader(self._calls, self._names)

    def _in_call(self, final: bool) -> Iterator[Delta]:
        count, deltas = self._call.read(self._text)
        self._take(count)
        yield from deltas
        state = self._call.state
        if not self._call.named and (final or state == "broken"):
            yield Delta(content=CALL + self._call.text)
            self._mode, self._trim = self._content, False
        elif state != "open" or final:
            self._calls += 1
            self._mode = self._after_call if state == "done" else self._broken_call

    def _after_call(self, final: bool) -> Iterator[Delta]:
        text = self._text.lstrip()
        if text.startswith(END_CALL):
            text = text.removeprefix(END_CALL)
        elif END_CALL.startswith(text):
            if not final:
                return
            text = ""
        self._text, self._mode, self._trim = text, self._content, True
        yield from ()

    def _broken_call(self, final: bool) -> Iterator[Delta]:
        text, marker = self._until((END_CALL,), final)
        yield from self._call.rest(text)
        if marker:
            self._take(len(END_CALL))
            self._mode, self._trim = self._content, True

    def _trimmed(self, marker: str, final: bool) -> tuple[str, str | None]:
        if self._trim:
            self._text = self._text.lstrip()
            self._trim = not self._text
        return self._until((marker,), final, blank=True)
