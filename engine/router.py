"""One endpoint before several replicas: an ASGI app that passes each request on to one of them.

A request goes where its prefix is. One whose replica dies is given to another as long as the client
has had nothing of the answer; after that its stream ends with an error event. Starting replicas
and watching over them is `replicas`' part.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from mkport.engine.affinity import Affinity, chain_of
from mkport.engine.merge import merge_metrics, merge_stats
from mkport.engine.server.errors import ApiError, busy
from mkport.engine.server.intake import reading
from mkport.engine.server.settings import Settings

ATTEMPTS = 3  # a request that fells this many replicas is the culprit
READY_S = 60.0  # for so long a request waits for a replica to come (back)
COMMENTS = re.compile(rb"(:[^\n]*\n|\r?\n)*")  # of an event stream: nothing a client would notice
HOP = {
    b"connection", b"content-length", b"date", b"expect", b"host", b"keep-alive",
    b"proxy-authenticate", b"proxy-authorization", b"server", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip


@dataclass
class Replica:
    """One server process, as the router sees it."""

    index: int
    url: str = ""  # "http://127.0.0.1:PORT"; another one after each restart
    ready: bool = False
    load: int = 0  # requests that it is at
    restarts: int = 0


@dataclass(frozen=True)
class _Request:
    """What a client asked, its body read."""

    method: str
    path: str  # with the query
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Router:
    """The ASGI app. `replicas` is kept up to date by whoever runs them; `settings` has the limits
    of bodies, each of which is kept until its request has been answered."""

    def __init__(self, replicas: Sequence[Replica], settings: Settings) -> None:
        self.replicas, self.settings = replicas, settings
        self.held = 0  # bytes of bodies
        self.affinity: Affinity[int] = Affinity()
        self._changed = asyncio.Event()
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(30.0, connect=5.0, read=None, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,  # replicas are on this machine, whatever proxy the environment names
        )

    def up(self, replica: Replica, url: str) -> None:
        """Notes that a replica can be asked, at this address."""
        self.affinity.forget(replica.index)
        replica.url, replica.ready = url, True
        self._changed.set()

    def down(self, replica: Replica) -> None:
        """Notes that a replica must not be asked."""
        replica.ready = False

    async def some_ready(self) -> None:
        """Waits for a replica that can be asked."""
        while not any(replica.ready for replica in self.replicas):
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Ends the connections to the replicas."""
        await self._client.aclose()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request; ends its work as soon as the client is gone."""
        if scope["type"] != "http":
            return
        try:
            async with reading(Request(scope, receive), self) as body:
                await self._work(_asked(scope, body), scope, receive, send)
        except ClientDisconnect:
            pass
        except ApiError as error:
            await error.response()(scope, receive, send)

    async def _work(self, request: _Request, scope: Any, receive: Any, send: Any) -> None:
        """Answers, as long as the client is there."""
        work = asyncio.ensure_future(self._answer(request, scope, receive, send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _answer(self, request: _Request, scope: Any, receive: Any, send: Any) -> None:
        path = request.path.partition("?")[0]
        try:
            if path in ("/health", "/ready"):
                answer: Response = self._health()
            elif path in ("/stats", "/metrics", "/reset_prefix_cache"):
                answer = await self._ask_all(path, request)
            else:
                await self._pass_on(request, send)
                return
        except ApiError as error:
            answer = error.response()
        await answer(scope, receive, send)

    def _health(self) -> Response:
        ready = sum(replica.ready for replica in self.replicas)
        told = [
            {"ready": one.ready, "running": one.load, "restarts": one.restarts}
            for one in self.replicas
        ]
        return JSONResponse({"ready": ready, "replicas": told}, 200 if ready else 503)

    async def _ask_all(self, path: str, request: _Request) -> Response:
        """One answer for what every replica has a part of; the first refusal, if there is one."""
        asked = [replica for replica in self.replicas if replica.ready]
        parts: dict[int, httpx.Response] = {}
        for replica in asked:
            with contextlib.suppress(httpx.TransportError):  # it dies: the others answer
                parts[replica.index] = await self._client.send(self._to(replica, request))
        if not parts:
            raise busy("No replica is ready.", "no_replica")
        first = next(iter(parts.values()))
        refused = next((part for part in parts.values() if part.status_code >= 400), None)
        if refused is not None or path == "/reset_prefix_cache":
            return _as_is(refused or first)
        if path == "/stats":
            return JSONResponse(merge_stats([part.json() for part in parts.values()]))
        merged = merge_metrics({index: part.text for index, part in parts.items()})
        return Response(merged, media_type=first.headers.get("content-type"))

    async def _pass_on(self, request: _Request, send: Any) -> None:
        """Passes a request to replicas until one of them answers. Raises ApiError if none does."""
        sink = _Sink(send)
        chain = chain_of(request.body) if request.method == "POST" else []
        tried: set[int] = set()
        for attempt in range(ATTEMPTS):
            replica = await self._choose(chain, tried)
            self.affinity.sent(replica.index, chain)
            replica.load += 1
            try:
                async with self._asking(replica, request) as answer:
                    full = answer.status_code == 503 and self._others(tried | {replica.index})
                    if not full or attempt == ATTEMPTS - 1:
                        await sink.take(answer, replica.index)
                        return
            except httpx.TransportError:
                if sink.begun:
                    await sink.fail("The replica that wrote this answer ended.")
                    return
            finally:
                replica.load -= 1
            tried.add(replica.index)
        message = f"{ATTEMPTS} replicas ended at this request."
        if not sink.started:
            raise ApiError(502, message, code="replica_lost")
        await sink.fail(message)

    async def _choose(self, chain: list[int], tried: set[int]) -> Replica:
        """A ready replica, one that was not tried if possible; waits for one to come back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_S):
                await self.some_ready()
        ready = [replica for replica in self.replicas if replica.ready]
        if not ready:
            raise busy("No replica is ready.", "no_replica", retry_s=10)
        fresh = [replica for replica in ready if replica.index not in tried] or ready
        loads = {replica.index: replica.load for replica in fresh}
        return self.replicas[self.affinity.choose(chain, loads)]

    def _others(self, tried: set[int]) -> bool:
        return any(one.ready and one.index not in tried for one in self.replicas)

    def _to(self, replica: Replica, request: _Request) -> httpx.Request:
        return self._client.build_request(
            request.method,
            replica.url + request.path,
            headers=request.headers,
            content=request.body,
        )

    @contextlib.asynccontextmanager
    async def _asking(self, replica: Replica, request: _Request) -> AsyncIterator[httpx.Response]:
        answer = await self._client.send(self._to(replica, request), stream=True)
        try:
            yield answer
        finally:
            await answer.aclose()


class _Sink:
    """The client's side of one answer, whichever replicas it comes from."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.started = False  # status and headers have been sent
        self.begun = False  # and something of the answer itself

    async def take(self, answer: httpx.Response, index: int) -> None:
        """Sends a replica's answer on: a stream piece by piece, anything else when it is whole.

        Raises httpx.TransportError when the replica ends before the answer does.
        """
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            whole = await answer.aread()
            length = len(whole) if answer.request.method != "HEAD" else None
            if self.started:  # a stream that waited for its first token cannot become an error page
                await self._body(b"data: " + b" ".join(whole.splitlines()) + b"\n\n", last=True)
                return
            await self._start(answer, index, length)
            await self._body(whole, last=True)
            return
        async for piece in answer.aiter_raw():
            await self._start(answer, index)
            self.begun = self.begun or COMMENTS.fullmatch(piece) is None
            await self._body(piece)
        await self._start(answer, index)
        await self._body(b"", last=True)

    async def fail(self, message: str) -> None:
        """Ends a stream that has started with an error event."""
        error = ApiError(502, message, code="replica_lost").body()
        await self._body(f"data: {json.dumps(error)}\n\n".encode(), last=True)

    async def _start(self, answer: httpx.Response, index: int, length: int | None = None) -> None:
        if self.started:
            return
        self.started = True
        headers = [(n, v) for n, v in answer.headers.raw if n.lower() not in HOP]
        headers.append((b"x-replica", str(index).encode()))
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self._send(
            {"type": "http.response.start", "status": answer.status_code, "headers": headers}
        )

    async def _body(self, piece: bytes, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": not last})


def _asked(scope: Any, body: bytes) -> _Request:
    query = scope.get("query_string", b"")
    path = scope.get("raw_path") or scope["path"].encode()
    return _Request(
        scope["method"],
        (path + (b"?" + query if query else b"")).decode("latin-1"),
        [(name, value) for name, value in scope["headers"] if name.lower() not in HOP],
        body,
    )


async def _gone(receive: Any) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _as_is(answer: httpx.Response) -> Response:
    return Response(
        answer.content, answer.status_code, media_type=answer.headers.get("content-type")
    )
