"""A request's body: read with limits on size and time, parsed where it does not hold up others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request

from mkport.engine.server.errors import ApiError, busy
from mkport.engine.server.schema import Fields, parse
from mkport.engine.server.service import Service
from mkport.engine.server.settings import Settings

AT_ONCE = 32 << 10  # bytes that are parsed in well under a millisecond

Body = TypeVar("Body", bound=Fields)


class Reader(Protocol):
    """Who reads bodies: within its limits, and `held` says how many bytes it has."""

    @property
    def settings(self) -> Settings:
        """The limits."""
        ...

    held: int


async def body_of(request: Request, kind: type[Body], service: Service) -> Body:
    """The body as its model.

    Raises ApiError for one that is too large (before it is read), too slow, not JSON or wrong, and
    ClientDisconnect when the client has gone.
    """
    _check_type(request)
    async with reading(request, service) as data:
        if len(data) <= AT_ONCE:
            return parse(kind, data)
        return await service.in_thread(parse, kind, data)


@asynccontextmanager
async def reading(request: Request, reader: Reader) -> AsyncIterator[bytes]:
    """The body's bytes, which count as held until the block ends. Raises ApiError for a body that
    is too large or too slow, and ClientDisconnect, as `body_of` does."""
    hold = _Hold(reader)
    try:
        try:
            async with asyncio.timeout(reader.settings.body_s):
                data = await _read(request, reader.settings, hold)
        except TimeoutError:
            raise ApiError(
                408,
                f"The body did not arrive within {reader.settings.body_s:.0f} s.",
                headers={"Connection": "close"},
            ) from None
        yield data
    finally:
        reader.held -= hold.held


def _check_type(request: Request) -> None:
    """JSON must say that it is JSON: a page elsewhere can then not post it without asking."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "The body must be JSON: send Content-Type: application/json.")


class _Hold:
    """How much of the memory for bodies one request has."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.held = 0

    def add(self, size: int) -> None:
        """Raises ApiError when the request, or all of them together, are too large."""
        settings = self._reader.settings
        if self.held + size > settings.max_body:
            raise ApiError(413, f"The body is larger than {settings.max_body} bytes.")
        if self._reader.held + size > settings.max_held:
            raise busy("Too many large requests are being read.", "too_many_requests")
        self.held += size
        self._reader.held += size


async def _read(request: Request, settings: Settings, hold: _Hold) -> bytes:
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said[:20]) > settings.max_body:
        raise ApiError(413, f"The body is larger than {settings.max_body} bytes.")
    parts: list[bytes] = []
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        hold.add(len(part))
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)
