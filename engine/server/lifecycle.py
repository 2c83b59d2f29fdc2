"""From a socket to a running server and back: binding, serving, draining on a signal, stopping.

The first signal stops taking requests and lets those at work end, for a bounded time; the second
ends them at once. Each that is cut gets an error of its own before its connection closes.
"""

import gc
import logging
import socket
import sys
import time
from functools import partial
from types import FrameType

import uvicorn

from mkport.engine.request import EngineLike
from mkport.engine.server.app import create_app
from mkport.engine.server.connection import Connection
from mkport.engine.server.service import Service
from mkport.engine.server.settings import Settings
from mkport.errors import UserError

log = logging.getLogger("mkport.server")

BACKLOG = 2048  # connections that wait to be accepted
CUT_S = 2.0  # for the last errors to be written
SWITCH_S = 0.0005  # a step waits no longer for the thread that prepares a request


def bind(host: str, port: int) -> socket.socket:
    """A socket of that address, not listening yet. Raises UserError when it cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except BaseException:
            made.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"The server cannot listen on {host} port {port}: {reason}. Choose another --port "
            "(0 takes a free one) or --host, or stop what uses it."
        ) from error
    return made


def url_of(listener: socket.socket) -> str:
    """The URL of a socket's address."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(engine: EngineLike, settings: Settings, listener: socket.socket) -> None:
    """Serves until a signal ends it, and then closes the engine."""
    config, service = config_for(engine, settings)
    _keep_pauses_short()
    try:
        Server(config, service).run(sockets=[listener])
    finally:
        engine.close()


def _keep_pauses_short() -> None:
    """What is in memory by now stays: to look for garbage among it would take the tenth of a second
    at a time. And a thread that has Python to itself gives it up sooner than by default."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)


def config_for(engine: EngineLike, settings: Settings) -> tuple[uvicorn.Config, Service]:
    """uvicorn's configuration for an engine's application, and what the routes share."""
    app = create_app(engine, settings)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=partial(Connection, settings=settings),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=65,  # longer than a proxy's, so that the proxy closes first
        timeout_graceful_shutdown=int(CUT_S),
        backlog=BACKLOG,
    )
    return config, app.state.service


class Server(uvicorn.Server):
    """uvicorn, which drains before it stops."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._until: float | None = None  # when draining ends
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second stops, a third does not wait for anything."""
        self._signals += 1
        if self._signals == 1:
            self._service.draining = True
            self._until = time.monotonic() + self._service.settings.drain_s
        elif self._signals == 2:
            self._until = 0.0
        else:
            self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: whether it is time to stop."""
        if self._until is not None:
            late = time.monotonic() >= self._until
            if late:
                self._service.stop()
            if late or not self._service.at_work:
                self.should_exit = True
        return await super().on_tick(counter)
