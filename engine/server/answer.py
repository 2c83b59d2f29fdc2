"""How an answer comes about: prepare, submit, relay the engine's events, whole or as a stream, and
end everything when the client goes away. What the bytes say is the endpoint's `Job`.
"""

import asyncio
import json
import logging
import types
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Generator, Sequence
from contextlib import aclosing
from typing import Any, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mkport.engine.request import Accepted, Event, Stream
from mkport.engine.server.connection import write_now
from mkport.engine.server.errors import ApiError, busy, invalid
from mkport.engine.server.record import Record
from mkport.engine.server.service import Service, Work

log = logging.getLogger("mkport.server")

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
PING = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"
DIRECT = "mkport.send"  # in a request's scope: the server's own way out, when it is known

Numbered = AsyncGenerator[tuple[int, Event], None]  # events with the choice or stream they are of


class Job(ABC):
    """One request of an endpoint: what to run, and how its events become bytes.

    Choices are numbered over all prompts: choice c of prompt p is p * n + c.
    """

    stream = False

    @abstractmethod
    def prepare(self) -> list[Work]:
        """The prompts, checked; called in a thread. Raises ApiError for a request that is wrong."""

    @abstractmethod
    def accepted(self, prompt: int, accepted: Accepted) -> None:
        """Takes what is known of a prompt once it has run, before its first event."""

    @abstractmethod
    def opening(self) -> bytes:
        """The first bytes of a stream."""

    @abstractmethod
    def chunk(self, choice: int, event: Event) -> bytes:
        """The bytes of an event in a stream, none if it has nothing to tell."""

    @abstractmethod
    def closing(self) -> bytes:
        """What a stream that went well says before [DONE]."""

    @abstractmethod
    def take(self, choice: int, event: Event) -> None:
        """Keeps an event for `whole`."""

    @abstractmethod
    def whole(self) -> bytes:
        """The JSON of an answer that is not a stream."""


class Answer(Response):
    """The response that runs a job. Errors before its first byte are ordinary error responses."""

    def __init__(self, job: Job, service: Service, record: Record) -> None:
        super().__init__()
        self._job = job
        self._service = service
        self._record = record
        self._gone = False
        self._streams: Sequence[Stream] = ()
        self._choices = 0  # of all its prompts; none before they are the engine's
        self._told: set[int] = set()  # prompts that have run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, as an ASGI application."""
        self._record.generates, self._record.stream = True, self._job.stream
        with self._service.work():
            watch = asyncio.create_task(self._watch(receive))
            try:
                await self._run(scope, receive, send)
            finally:
                watch.cancel()
                self._service.release(self._streams)
                if self._gone:
                    self._record.error = "the client went away"
                    self._record.cut(self._choices, self._service.metrics)

    async def _watch(self, receive: Receive) -> None:
        """Waits for the client to go away, and then ends its requests."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        for stream in self._streams:
            stream.cancel()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        works, streams = await self._service.in_thread(self._start)
        self._streams = streams
        self._service.hold(streams)
        self._choices = works[0].n * len(streams)
        if self._gone:
            return
        self._record.prompt_tokens = sum(len(work.prompt) for work in works)
        if self._job.stream:
            await self._stream(_Out(send, scope.get(DIRECT, send)), works[0].n)
            return
        async with aclosing(self._events(works[0].n)) as events:
            async for choice, event in events:
                self._job.take(choice, event)
        if not self._gone:
            response = Response(self._job.whole(), 200, media_type="application/json")
            await response(scope, receive, send)

    def _start(self) -> tuple[list[Work], list[Stream]]:
        """Everything up to the engine's queue; in a thread."""
        works = self._job.prepare()
        return works, [] if self._gone else self._service.submit(works)

    async def _stream(self, out: "_Out", n: int) -> None:
        """The same as server-sent events: one write an event; uvloop joins those of one step.

        The status is decided by the first event, so that what fails early gets a status of its own;
        while there is none, comments tell the client that the server is alive.
        """
        try:
            async with aclosing(self._events(n)) as events:
                await self._relay(events, out)
        except Exception as error:
            if not out.begun:
                raise
            if not isinstance(error, ApiError):
                log.exception("failure", extra={"fields": {"id": self._record.id}})
                error = ApiError(500, f"Something failed here (request {self._record.id}).")
            self._record.error = str(error)
            await out.write(f"data: {json.dumps(error.body())}\n\n".encode(), more=False)

    async def _relay(self, events: Numbered, out: "_Out") -> None:
        job = self._job
        first = asyncio.ensure_future(anext(events, None))
        try:
            while not (await asyncio.wait([first], timeout=self._service.settings.ping_s))[0]:
                await out.write(PING)
            got = await first
        finally:
            first.cancel()
        if got is None:  # the client has gone
            return
        await out.write(job.opening() + job.chunk(*got))
        if len(self._streams) == 1:
            await self._pour(self._streams[0], out)
        async for choice, event in events:
            data = job.chunk(choice, event)
            if data:
                await out.write(data)
        if not self._gone:
            await out.write(job.closing() + DONE, more=False)

    async def _pour(self, stream: Stream, out: "_Out") -> None:
        """Relays a single stream where its events are heard, without waking this task for each: as
        long as the client reads what is written."""
        left = list[Event]()  # not written yet
        paused = asyncio.get_running_loop().create_future()

        def heard() -> None:
            if paused.done():
                return
            try:
                left.extend(stream.drain())
                while left and not self._gone and out.ready:
                    event = left.pop(0)
                    data = self._job.chunk(self._seen(0, self._choices, event), event)
                    if data:
                        out.put(data)
                if self._gone or stream.ended or not out.ready:
                    paused.set_result(None)
            except Exception as error:
                paused.set_exception(error)

        try:
            while not self._gone and (left or not stream.ended):
                stream.listen(heard)
                heard()
                await paused
                await out.flushed()
                paused = asyncio.get_running_loop().create_future()
        finally:
            stream.listen(None)

    async def _events(self, n: int) -> Numbered:
        """The events of all prompts, their choices numbered through; counted on the way.

        Raises ApiError for one that failed or was ended; ends early when the client has gone.
        """
        if len(self._streams) == 1:
            async for event in self._streams[0]:
                if self._gone:
                    return
                yield self._seen(0, n, event), event
        else:
            async with aclosing(_merged(self._streams)) as merged:
                async for prompt, event in merged:
                    if self._gone:
                        return
                    yield self._seen(prompt, n, event), event
        if not self._gone and len(self._record.reasons) < n * len(self._streams):
            raise ApiError(500, "The engine ended the request early.", code="generation_failed")

    def _seen(self, prompt: int, n: int, event: Event) -> int:
        """Counts an event; returns the choice that it is of. Raises ApiError."""
        choice = prompt * n + event.choice
        self._record.saw(choice, event, self._service.metrics)
        if event.reason in ("error", "abort"):
            raise self._failure(event)
        if prompt not in self._told:
            self._told.add(prompt)
            accepted = self._streams[prompt].accepted
            if accepted is not None:
                self._record.cached_tokens += accepted.cached_tokens
                self._job.accepted(prompt, accepted)
        return choice

    def _failure(self, event: Event) -> ApiError:
        if event.reason == "error":
            message = event.error or "The request failed."
            if event.own:
                return invalid(message, code="cannot_go_on")
            return ApiError(500, message, code="generation_failed")
        if self._service.stopping:
            return busy("The server is shutting down.", "shutting_down", 5)
        return ApiError(500, event.error or "The request was ended.", code="aborted")


class _Out:
    """The body of a stream on its way out; its head goes before the first bytes.

    The head and the end pass the middleware, what is between goes straight to the server: a token
    has no time to lose.
    """

    def __init__(self, send: Send, direct: Send) -> None:
        self._send, self._direct = send, direct
        self.begun = False
        self._rest: Awaitable[None] | None = None  # of a write that waits

    @property
    def ready(self) -> bool:
        """Whether the client reads as fast as is written."""
        return self._rest is None

    def put(self, data: bytes) -> None:
        """Writes at once, or begins to: `flushed` waits for the end of that. What is written has
        begun, and no write before waits."""
        if write_now(self._direct, data):
            return
        message = {"type": "http.response.body", "body": data, "more_body": True}
        writing = cast(Coroutine[Any, Any, None], self._direct(message))
        try:
            waits_for = writing.send(None)
        except StopIteration:
            return
        self._rest = _resumed(waits_for, writing)

    async def flushed(self) -> None:
        """Waits while the client is slow to read."""
        rest, self._rest = self._rest, None
        if rest is not None:
            await rest

    async def write(self, data: bytes, more: bool = True) -> None:
        """Waits while the client is slow to read."""
        if not self.begun:
            self.begun = True
            start = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
            await self._send(start)
        send = self._direct if more else self._send
        await send({"type": "http.response.body", "body": data, "more_body": more})


@types.coroutine
def _resumed(waits_for: Any, writing: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
    """What is left of a coroutine that ran up to where it waits."""
    yield waits_for
    yield from writing


async def _merged(streams: Sequence[Stream]) -> Numbered:
    """The events of several streams as they come, each with its stream's number."""
    queue: asyncio.Queue[tuple[int, Event | Exception | None]] = asyncio.Queue()

    async def pump(number: int, stream: Stream) -> None:
        try:
            async for event in stream:
                queue.put_nowait((number, event))
            queue.put_nowait((number, None))
        except Exception as error:
            queue.put_nowait((number, error))

    pumps = [asyncio.create_task(pump(*item)) for item in enumerate(streams)]
    try:
        left = len(pumps)
        while left:
            number, news = await queue.get()
            if isinstance(news, Exception):
                raise news
            if news is None:
                left -= 1
            else:
                yield number, news
    finally:
        for task in pumps:
            task.cancel()
