"""Replicas on one or many machines under Ray Serve, behind one endpoint, routed by prefix.

Ray does placement, health and restart; which replica a request goes to is `affinity`'s choice here
as it is without Ray. Needs the extra `ray`. Run it with

    serve run mkport.engine.ray_app:app model=DIR replicas=4

Arguments: `replicas`, `cores` of each (Ray's num_cpus), `gpus` of each (num_gpus), `model` (the
demo model without it), `api_key`; all others are the engine's own (max_batch=8, ...).
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from mkport.engine.affinity import Affinity, chain_of
from mkport.engine.router import ATTEMPTS
from mkport.engine.server.errors import ApiError
from mkport.engine.server.settings import Settings

AT_ONCE = 1024  # requests that a replica is given; its engine queues them

App = Callable[[Any, Any, Any], Any]  # an ASGI application


def app(arguments: Mapping[str, str]) -> serve.Application:
    """The application for `serve run`, from its arguments, which are all text."""
    options = dict(arguments)
    replicas, cores = int(options.pop("replicas", 1)), float(options.pop("cores", 1))
    gpus = float(options.pop("gpus", 0))

    def make() -> tuple[App, Callable[[], float]]:
        from mkport.engine import Engine
        from mkport.engine.build import opened
        from mkport.engine.server.app import create_app

        given = dict(options)
        model, key = given.pop("model", None), given.pop("api_key", None)
        numbers: dict[str, Any] = {n: int(v) if v.isdigit() else v for n, v in given.items()}
        engine = Engine(opened(model, None, given.get("machine", "cpu")), **numbers)
        return create_app(engine, Settings(api_key=key)), engine.heartbeat_s

    return application(make, replicas, num_cpus=cores, num_gpus=gpus)


def application(
    make: Callable[[], tuple[App, Callable[[], float]]], replicas: int, **resources: float
) -> serve.Application:
    """The front and its replicas. `make` runs in each replica: it returns what answers there, and
    how long ago it last showed life, in seconds. `resources` of a replica are Ray's."""
    routed = serve.deployment(
        num_replicas=replicas,
        ray_actor_options=resources,
        max_ongoing_requests=AT_ONCE,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
    )(Replica)
    front = serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=AT_ONCE)(
        Front
    )  # it only passes on, so no core is kept for it
    return front.bind(routed.bind(make))


class PrefixRouter(RequestRouter):
    """Ray's hook for choosing a replica. The first argument of a request is its chain."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Begins with replicas that were sent nothing."""
        self._affinity: Affinity[ReplicaID] = Affinity()
        self._at: dict[str, ReplicaID] = {}  # requests that have not ended, by Ray's id of them
        self._ended: deque[str] = deque(maxlen=AT_ONCE)  # a short one may end before it is noted

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replica by prefix and load, then the others, in case that it takes no more."""
        if not candidate_replicas or pending_request is None:
            return [candidate_replicas]
        chain = pending_request.args[0]
        by_id = {replica.replica_id: replica for replica in candidate_replicas}
        loads = Counter(self._at.values())
        chosen = self._affinity.choose(chain, {one: loads[one] for one in by_id})
        return [[by_id.pop(chosen)], list(by_id.values())]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """Notes a request that was sent."""
        request = pending_request.metadata.internal_request_id
        if request not in self._ended:
            self._at[request] = replica_id
        self._affinity.sent(replica_id, pending_request.args[0])

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Notes that a request has ended."""
        if self._at.pop(internal_request_id, None) is None:
            self._ended.append(internal_request_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forgets a replica; the one that takes its place has another id."""
        super().on_replica_actor_died(replica_id)
        self._affinity.forget(replica_id)


class Replica:
    """One engine and the application that serves it."""

    def __init__(self, make: Callable[[], tuple[App, Callable[[], float]]]) -> None:
        self._app, self._heartbeat_s = make()

    def check_health(self) -> None:
        """Raises RuntimeError when the engine is dead, whereupon Ray starts another replica."""
        if self._heartbeat_s() > Settings().dead_s:
            raise RuntimeError("the engine's loop does not come round")

    async def answer(
        self, chain: list[int], scope: dict[str, Any], body: bytes
    ) -> AsyncIterator[Any]:
        """One request: first status and headers, then the pieces of the answer's body. The router
        has read `chain` [pieces] before; it is not used here."""
        sent: asyncio.Queue[Any] = asyncio.Queue()
        given = asyncio.Queue[Any]()
        given.put_nowait({"type": "http.request", "body": body, "more_body": False})
        work = asyncio.ensure_future(self._app(scope, given.get, sent.put))
        work.add_done_callback(lambda done: sent.put_nowait(None))
        try:
            while (message := await sent.get()) is not None:
                if message["type"] == "http.response.start":
                    yield message["status"], message.get("headers", [])
                elif piece := message.get("body"):
                    yield piece
            work.result()
        finally:
            given.put_nowait({"type": "http.disconnect"})  # does nothing after the end
            work.cancel()


class Front:
    """What clients reach: passes each request to a replica, to another if that one is lost before
    it has begun to answer."""

    def __init__(self, replicas: Any) -> None:
        self._answer = replicas.answer.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        """Answers one request as a replica answers it."""
        body = await request.body()
        chain = chain_of(body)
        kept = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path",
                "query_string", "root_path", "headers", "client", "server")  # fmt: skip
        scope = {name: request.scope[name] for name in kept if name in request.scope}
        for _ in range(ATTEMPTS):
            pieces = self._answer.remote(chain, scope, body)
            try:
                status, headers = await anext(pieces)
                first = await anext(pieces, b"")
            except ray.exceptions.RayActorError:
                continue
            answer = StreamingResponse(_joined(first, pieces), status)
            answer.raw_headers = [(name, value) for name, value in headers]
            return answer
        message = f"{ATTEMPTS} replicas ended at this request."
        return ApiError(502, message, code="replica_lost").response()


async def _joined(first: bytes, rest: Any) -> AsyncIterator[bytes]:
    """The pieces of a body; when the replica is lost, a stream's last event says so."""
    yield first
    try:
        async for piece in rest:
            yield piece
    except ray.exceptions.RayActorError:
        error = ApiError(502, "The replica that wrote this answer ended.", code="replica_lost")
        yield b"data: " + bytes(error.response().body) + b"\n\n"
