"""The way of a request's events from the engine's thread to whoever waits for them: a coroutine in
an event loop, or an ordinary thread. What the events say is the core's business."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from mkport.engine.request import Accepted, Event


class EventStream:
    """The events of one request, all choices interleaved, until `choices` of them have ended.

    Iterate it with `for` in a thread or `async for` in an event loop; cancel it when you leave
    before its end.
    """

    def __init__(self, name: str, choices: int, cancel: Callable[[], object]) -> None:
        self.id = name
        self.accepted: Accepted | None = None  # the core's, before the first event
        self._open = choices
        self._cancel = cancel
        self._events: deque[Event] = deque()
        self._ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None  # that waits for events, if one does
        self._waiting: asyncio.Future[None] | None = None  # touched in the loop's thread alone
        self._heard: Callable[[], object] | None = None  # likewise

    def cancel(self) -> None:
        """Ends the request in whatever state it is. Safe from any thread, and more than once."""
        self._cancel()

    def put(self, event: Event) -> None:
        """An event from the engine's thread; `wake` makes it seen."""
        self._events.append(event)
        if self.loop is None:  # it may be a thread that waits
            self._ready.set()

    def drain(self) -> list[Event]:
        """The events that are there."""
        found = []
        while self._events:
            found.append(self._next())
        return found

    def listen(self, heard: Callable[[], object] | None) -> None:
        """In an event loop, which calls `heard` when events are there: sooner than a task that
        waits for them would run. None: no more."""
        self.loop, self._heard = asyncio.get_running_loop(), heard

    @property
    def ended(self) -> bool:
        """Whether every choice's last event was taken."""
        return not self._open

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while self._open:
            if self._events:
                return self._next()
            self._ready.wait()
            self._ready.clear()
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while self._open:
            self.loop = asyncio.get_running_loop()  # before the look, so that no event is missed
            if self._events:
                return self._next()
            self._waiting = self.loop.create_future()
            await self._waiting
        raise StopAsyncIteration

    def _next(self) -> Event:
        event = self._events.popleft()
        self._open -= event.reason is not None
        return event

    def resume(self) -> None:
        """In the loop's thread: events are there."""
        if self._heard is not None:
            self._heard()
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def wake(streams: Iterable[EventStream]) -> None:
    """Makes events seen that were put into streams: one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[EventStream]] = {}
    for stream in streams:
        if stream.loop is not None:
            by_loop.setdefault(stream.loop, []).append(stream)
    for loop, waiting in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resume, waiting)
        except RuntimeError:  # the loop is closed: nobody will ever read these
            for stream in waiting:
                stream.cancel()


def _resume(streams: list[EventStream]) -> None:
    for stream in streams:
        stream.resume()
