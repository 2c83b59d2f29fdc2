"""What a parser says of a reply, and what all parsers have in common: text comes in pieces of any
size, and its meaning must not depend on where it was cut. The formats are other modules' matter."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Delta:
    """A piece of a reply: of its content, of its reasoning, or of one tool call."""

    content: str = ""
    reasoning: str = ""
    index: int | None = None  # which tool call, counted from 0; None: not of a call
    id: str = ""  # with a call's first piece only
    name: str = ""  # likewise
    arguments: str = ""  # JSON as the model wrote it, which may be cut short or invalid


Mode = Callable[[bool], Iterator[Delta]]


class Parser(ABC):
    """Turns one reply's text into deltas, as it comes."""

    def __init__(self) -> None:
        self._text = ""  # not yet understood
        self._mode: Mode = self._start

    @abstractmethod
    def _start(self, final: bool) -> Iterator[Delta]:
        """The first mode. A mode takes what it understands from `_text`, says what it was, and sets
        the next mode; with `final` it leaves nothing."""

    @property
    def in_call(self) -> bool:
        """Whether a call has begun whose object has not ended."""
        return False

    def _take(self, count: int) -> str:
        taken, self._text = self._text[:count], self._text[count:]
        return taken

    def _until(
        self, markers: Sequence[str], final: bool, blank: bool = False
    ) -> tuple[str, str | None]:
        """Takes the text that surely stands before a marker; and the marker if that is next. With
        `blank`, white space before a marker is dropped."""
        found = first_marker(self._text, markers)
        if found:
            text = self._take(found[0])
            return text.rstrip() if blank else text, found[1]
        end = len(self._text) if final else decided(self._text, markers, blank)
        return self._take(end), None

    def push(self, text: str) -> list[Delta]:
        """What `text` adds to what is known for sure."""
        if text and self.is_content(text):
            return [Delta(content=text)]
        self._text += text
        return list(self._read(final=False))

    def is_content(self, text: str) -> bool:
        """Whether `text`, which is not empty, is content for sure and nothing else is to be told,
        by a quick look. To push it, or not, is then the same."""
        return not self._text and self._is_content(text)

    def _is_content(self, text: str) -> bool:
        """See `is_content`; nothing is held back."""
        return False

    def finish(self) -> list[Delta]:
        """The rest, once the reply is over: nothing is held back any longer."""
        return list(self._read(final=True))

    def _read(self, final: bool) -> Iterator[Delta]:
        """Takes from `_text` all that is decided; with `final`, everything."""
        while True:
            before = self._mode, len(self._text)
            yield from self._mode(final)
            if before == (self._mode, len(self._text)):
                return


@dataclass
class Call:
    """A tool call put together."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class Reply:
    """A whole reply put together from its deltas."""

    content: str
    reasoning: str
    calls: list[Call]


def joined(deltas: Iterable[Delta]) -> Reply:
    """The reply that the deltas are the pieces of."""
    reply = Reply("", "", [])
    for delta in deltas:
        reply.content += delta.content
        reply.reasoning += delta.reasoning
        if delta.index is not None:
            while len(reply.calls) <= delta.index:
                reply.calls.append(Call())
            call = reply.calls[delta.index]
            call.id += delta.id
            call.name += delta.name
            call.arguments += delta.arguments
    return reply


def first_marker(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """Where the first of `markers` begins in `text`, and which it is."""
    places = [(text.find(marker), marker) for marker in markers]
    return min((place for place in places if place[0] >= 0), default=None)


def decided(text: str, markers: Sequence[str], blank: bool = False) -> int:
    """How much of `text`, which holds no whole marker, is surely not the beginning of one; with
    `blank`, nor of white space before one."""
    longest = max(map(len, markers), default=1) - 1
    for start in range(max(len(text) - longest, 0), len(text)):
        if any(marker.startswith(text[start:]) for marker in markers):
            break
    else:
        start = len(text)
    return len(text[:start].rstrip()) if blank else start
