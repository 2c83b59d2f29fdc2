"""The application: every route and what happens to its errors. What a route does is elsewhere."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

import mkport
from mkport.engine.request import EngineLike
from mkport.engine.server import page
from mkport.engine.server.answer import DIRECT, Answer
from mkport.engine.server.chat import ChatJob
from mkport.engine.server.completions import CompletionJob
from mkport.engine.server.errors import ApiError, invalid
from mkport.engine.server.gate import Gate
from mkport.engine.server.intake import body_of
from mkport.engine.server.openapi import describe, operation
from mkport.engine.server.schema import ChatRequest, CompletionRequest
from mkport.engine.server.service import Service
from mkport.engine.server.settings import Settings
from mkport.engine.server.utilities import router
from mkport.errors import UserError

log = logging.getLogger("mkport.server")


class _App(FastAPI):
    """Hands the server's own `send` on: what writes the pieces of a stream needs no middleware, of
    which FastAPI has one around all others."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[DIRECT] = send
        await super().__call__(scope, receive, send)


def create_app(engine: EngineLike, settings: Settings | None = None) -> FastAPI:
    """The application that serves an engine; its `state.service` is what the routes share."""
    service = Service(engine, settings or Settings())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = _App(
        title="mkport",
        version=mkport.__version__,
        description="An OpenAI-compatible server.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.add_middleware(Gate, service=service)
    app.add_exception_handler(ApiError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(UserError, _answer_user_error)

    @app.post("/v1/chat/completions", **operation("chat", ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """Answers a conversation, whole or as a stream of server-sent events."""
        body = await body_of(request, ChatRequest, service)
        service.check_model(body.model)
        record = request.scope["record"]
        return Answer(ChatJob(body, service, record.id), service, record)

    @app.post("/v1/completions", **operation("completion", CompletionRequest))
    async def completions(request: Request) -> Response:
        """Continues one or many prompts, whole or as a stream of server-sent events."""
        body = await body_of(request, CompletionRequest, service)
        service.check_model(body.model)
        record = request.scope["record"]
        return Answer(CompletionJob(body, service, record.id), service, record)

    app.include_router(router(service))
    app.include_router(page.router(engine))
    app.openapi = lambda: describe(app, service)  # type: ignore[method-assign]
    return app


async def _answer_error(request: Request, error: Any) -> Response:
    request.scope["record"].error = error.message
    return error.response()


async def _answer_http_error(request: Request, error: Any) -> Response:
    path = request.url.path[:200]
    said = {
        404: f"There is no {path} here.",
        405: f"{path} does not take {request.method[:20]}.",
    }
    message = said.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response()


async def _answer_user_error(request: Request, error: Any) -> Response:
    return await _answer_error(request, invalid(str(error)))
