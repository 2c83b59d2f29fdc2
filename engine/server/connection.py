"""One client's connection, as far as uvicorn leaves it to us: what the head of a request may take,
in bytes and in seconds, what is answered to what is no HTTP, and a short way for a stream's bytes.
"""

import asyncio
import json
from typing import Any

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from mkport.engine.server.errors import ApiError
from mkport.engine.server.settings import Settings


class Connection(HttpToolsProtocol):
    """Cuts off whose request line and headers do not end, or do not come."""

    def __init__(self, *args: Any, settings: Settings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._head: int | None = None  # bytes of the head that is being read
        self._patience: asyncio.TimerHandle | None = None  # with a client who owes a head

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing any more."""
        self._done()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._head = 0
        self._wait()

    def on_headers_complete(self) -> None:
        """It is whole."""
        self._done()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Counts what belongs to a head."""
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > self._settings.max_head:
                self._refuse(431, f"The headers are larger than {self._settings.max_head} bytes.")

    def send_400_response(self, msg: str) -> None:
        """Answers what the parser does not understand."""
        self._refuse(400, msg)

    def _wait(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(self._settings.head_s, self._too_late)

    def _done(self) -> None:
        self._head = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _too_late(self) -> None:
        self._patience = None
        self._refuse(408, f"No request came within {self._settings.head_s:g} seconds.")

    def _refuse(self, status: int, message: str) -> None:
        self._done()
        if self.transport.is_closing():
            return
        body = json.dumps(ApiError(status, message).body()).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.transport.close()


def write_now(send: Send, data: bytes) -> bool:
    """Writes a piece of a chunked body, which has begun, at once: as `send` would, which is ASGI's,
    without a message and a coroutine. False, and nothing is written, where only `send` can."""
    cycle = getattr(send, "__self__", None)
    if type(cycle) is not RequestResponseCycle or cycle.flow.write_paused:
        return False
    if not cycle.chunked_encoding or cycle.response_complete:
        return False
    if not cycle.disconnected:
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return True
