"""The small endpoints: models, health, metrics, tokens, version. Generation is elsewhere."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

import mkport
from mkport.engine.server import conversation, fields
from mkport.engine.server.errors import ApiError, busy, invalid, too_long
from mkport.engine.server.intake import body_of
from mkport.engine.server.metrics import CONTENT_TYPE
from mkport.engine.server.openapi import operation
from mkport.engine.server.rendering import render
from mkport.engine.server.schema import DetokenizeRequest, TokenizeRequest
from mkport.engine.server.service import Service
from mkport.engine.server.tokens import token_text


def router(service: Service) -> APIRouter:
    """Their routes."""
    routes = APIRouter()
    engine = service.engine

    def model() -> dict[str, Any]:
        return {
            "id": engine.name,
            "object": "model",
            "created": service.created,
            "owned_by": "mkport",
            "root": engine.name,
            "parent": None,
            "max_model_len": engine.context,
        }

    @routes.get("/v1/models", **operation("models"))
    async def models() -> Response:
        """The model that is served, as a list."""
        return JSONResponse({"object": "list", "data": [model()]})

    @routes.get("/v1/models/{model_id:path}", **operation("model", path=("model_id",)))
    async def one_model(request: Request) -> Response:
        """One model by its id."""
        service.check_model(request.path_params["model_id"])
        return JSONResponse(model())

    @routes.head("/health", include_in_schema=False)
    @routes.get("/health", **operation("empty"))
    async def health() -> Response:
        """Whether the engine's loop still comes round: 200, or 503 when it is dead."""
        if not service.alive():
            raise ApiError(503, "The engine is dead.", code="engine_dead")
        return Response()

    @routes.head("/ready", include_in_schema=False)
    @routes.get("/ready", **operation("empty"))
    async def ready() -> Response:
        """Whether requests are taken: 200, or 503 when the engine is dead or the server stops."""
        if service.draining:
            raise busy("The server is shutting down.", "shutting_down", 5)
        return await health()

    @routes.get("/metrics", **operation("text"))
    async def metrics() -> Response:
        """Counters, gauges and histograms for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @routes.get("/version", **operation("version"))
    async def version() -> Response:
        """The version of mkport."""
        return JSONResponse({"version": mkport.__version__})

    @routes.post("/reset_prefix_cache", **operation("empty"))
    async def reset_prefix_cache() -> Response:
        """Forgets the cached prefixes that no request uses."""
        engine.reset_prefix_cache()
        return Response()

    @routes.post("/tokenize", **operation("tokenized", TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """The token ids of a prompt, or of a conversation as the model would read it."""
        body = await body_of(request, TokenizeRequest, service)
        service.check_model(body.model)
        ids = await service.in_thread(_tokenize, body, service)
        told: dict[str, Any] = {
            "tokens": ids,
            "count": len(ids),
            "max_model_len": engine.context,
            "token_strs": None,
        }
        if body.return_token_strs:
            told["token_strs"] = [token_text(engine.tokenizer, i) for i in ids]
        return JSONResponse(told)

    @routes.post("/detokenize", **operation("detokenized", DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """The text of token ids, special tokens included."""
        body = await body_of(request, DetokenizeRequest, service)
        service.check_model(body.model)
        ids = fields.known(body.tokens, engine.vocab, "tokens")
        text = await service.in_thread(engine.tokenizer.decode, ids, False)
        return JSONResponse({"prompt": text})

    @routes.get("/tokenizer_info", **operation("tokenizer"))
    async def tokenizer_info() -> Response:
        """What is known of the tokenizer."""
        tokenizer = engine.tokenizer
        return JSONResponse(
            {
                "vocab_size": tokenizer.vocab_size,
                "eos_token_ids": list(tokenizer.eos_ids),
                "chat_template": tokenizer.chat_template,
                "max_model_len": engine.context,
            }
        )

    return routes


def _tokenize(body: TokenizeRequest, service: Service) -> list[int]:
    tokenizer = service.engine.tokenizer
    if (body.prompt is None) == (body.messages is None):
        raise invalid("Send either prompt or messages.", "prompt")
    if body.messages is not None:
        return render(
            service,
            conversation.messages(body.messages),
            conversation.tools(body.tools),
            conversation.template_variables(body.chat_template_kwargs, None),
            add_generation_prompt=body.add_generation_prompt,
            continue_final=bool(body.continue_final_message),
            add_special=bool(body.add_special_tokens),
        ).ids
    text = body.prompt or ""
    if len(text) > service.most_characters:
        raise too_long(service.engine.context, f"more than {service.engine.context}", "prompt")
    return tokenizer.encode(text, body.add_special_tokens is not False)
