"""How the server describes itself at /openapi.json. Bodies are parsed by hand, off the event loop,
so what FastAPI would have read from signatures is said here."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from mkport.engine.server import replies
from mkport.engine.server.errors import ErrorBody
from mkport.engine.server.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from mkport.engine.server.service import Service

_REF = "#/components/schemas/{model}"
_REQUESTS: tuple[type[BaseModel], ...] = (
    ChatRequest,
    CompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
)
_EVENT = {  # each is a chunk or an error as JSON, the last one [DONE]
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string"}},
}
_EVENTS = {"text/event-stream": {"schema": _EVENT}}
_ANSWERS: dict[str, dict[str, Any]] = {
    "chat": {"model": replies.ChatCompletion, "content": _EVENTS},
    "completion": {"model": replies.Completion, "content": _EVENTS},
    "models": {"model": replies.ModelList},
    "model": {"model": replies.Model},
    "tokenized": {"model": replies.Tokenized},
    "detokenized": {"model": replies.Detokenized},
    "tokenizer": {"model": replies.TokenizerInfo},
    "version": {"model": replies.Version},
    "text": {"content": {"text/plain": {"schema": {"type": "string"}}}},
    "empty": {},
}
_ERRORS = {
    400: "The request is wrong; the error names the field.",
    401: "The API key is missing or wrong.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    500: "The request failed.",
    503: "Not now; Retry-After says when to come back.",
}


def operation(
    answer: str, body: type[BaseModel] | None = None, path: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What a route's decorator is told: its answers, its body, its path's parts."""
    responses: dict[int, dict[str, Any]] = {
        200: {"description": "It went well.", **_ANSWERS[answer]}
    }
    for status, told in _ERRORS.items():
        if body is not None or status in (401, 503) or (path and status == 404):
            responses[status] = {"description": told, "model": ErrorBody}
    extra: dict[str, Any] = {}
    if body is not None:
        schema = {"schema": {"$ref": _REF.format(model=body.__name__)}}
        extra["requestBody"] = {"required": True, "content": {"application/json": schema}}
    if path:
        extra["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in path
        ]
    return {"response_class": Response, "responses": responses, "openapi_extra": extra}


def describe(app: FastAPI, service: Service) -> dict[str, Any]:
    """The OpenAPI object, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        _, requests = models_json_schema(
            [(model, "validation") for model in _REQUESTS], ref_template=_REF
        )
        schemas = made["components"]["schemas"]
        schemas |= requests["$defs"]
        for model in _REQUESTS:
            schemas[model.__name__]["properties"]["model"] = {
                "anyOf": [{"enum": [service.engine.name, ""]}, {"type": "null"}],
                "title": "Model",
            }
        if service.settings.api_key is not None:
            made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            made["security"] = [{"key": []}]
        app.openapi_schema = made
    return app.openapi_schema
