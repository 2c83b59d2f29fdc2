"""What every request passes on its way in and out: the key, an id, the log line, and the promise
that whatever goes wrong inside ends as an error in the server's form."""

import hashlib
import hmac
import logging
import uuid

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mkport.engine.server.errors import ApiError
from mkport.engine.server.page import FILES
from mkport.engine.server.record import Record
from mkport.engine.server.service import Service

log = logging.getLogger("mkport.server")

OPEN_PATHS = frozenset(("/health", "/ready", "/metrics", *FILES))  # need no key


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        key = service.settings.api_key
        self._key = None if key is None else _digest(f"bearer {key}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything else goes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(uuid.uuid4().hex, scope["method"], scope["path"][:200])
        scope["record"] = record
        stamp = (b"x-request-id", record.id.encode())

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), stamp]
            await send(message)

        if scope["method"] == "HEAD":  # as GET; uvicorn, whose scope stays, leaves the body out
            scope = {**scope, "method": "GET"}
        try:
            self._check_key(scope, record)
            await self._app(scope, receive, answer)
        except ClientDisconnect:
            record.error = "the client went away"
        except ApiError as error:
            record.error = error.message
            await error.response()(scope, receive, answer)
        except Exception:
            log.exception("failure", extra={"fields": {"id": record.id}})
            record.error = "failure inside the server"
            if record.status:
                raise  # its answer has begun: the connection is cut
            failed = ApiError(500, f"Something failed inside the server (request {record.id}).")
            await failed.response()(scope, receive, answer)
        finally:
            record.finish(self._service.metrics)

    def _check_key(self, scope: Scope, record: Record) -> None:
        headers = dict(scope["headers"])
        client_id = headers.get(b"x-request-id")
        if client_id:
            record.client_id = client_id[:100].decode("ascii", "replace")
        if self._key is None or scope["path"] in OPEN_PATHS:
            return
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if not hmac.compare_digest(_digest(scheme.lower() + b" " + key.strip()), self._key):
            raise ApiError(
                401,
                "A valid API key is needed: send Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _digest(text: bytes) -> bytes:
    """Equal in length whatever the text, so that a comparison tells nothing about the length."""
    return hashlib.sha256(text).digest()
