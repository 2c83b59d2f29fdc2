"""What goes wrong, as the one JSON object that every error of the server is.

Which request is wrong is decided elsewhere; here are the exception, its body, and pydantic's
complaints in words.

Source: OpenAI's API reference, "Error codes".
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.responses import JSONResponse

# pydantic's names of a union's members, which stand in a path like keys; others hold a bracket
_MEMBERS = frozenset(("str", "int", "float", "bool", "list", "dict", "constrained-str"))


class ErrorDetail(BaseModel):
    """What happened, to which field, and a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class ApiError(Exception):
    """A request that gets an error instead of its answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object: `error` with message, type, param and code."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """The answer as HTTP."""
        return JSONResponse(self.body(), self.status, self.headers)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The client's mistake: 400."""
    return ApiError(400, message, param=param, code=code)


def too_long(context: int, tokens: int | str, param: str) -> ApiError:
    """A prompt of `tokens` that leaves no room for one more in a `context` of so many tokens: 400,
    in the words that clients look for; `param` is the prompt's field."""
    return invalid(
        f"This model's maximum context length is {context} tokens. However, your {param} resulted "
        f"in {tokens} tokens, and at least one must be left for the answer. Please reduce the "
        f"length of the {param}.",
        param,
        "context_length_exceeded",
    )


def busy(message: str, code: str, retry_s: int = 1) -> ApiError:
    """Not now: 503, to come back after `retry_s` seconds."""
    return ApiError(503, message, code=code, headers={"Retry-After": str(max(1, retry_s))})


def from_pydantic(error: ValidationError) -> ApiError:
    """The first wrong field's complaint; a union's complaints are joined."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    if errors[0]["type"] == "json_invalid":
        return invalid(f"The body is not valid JSON: {errors[0]['msg']}.")
    param = _path(errors[0]["loc"])
    told = dict.fromkeys(e["msg"] for e in errors if _path(e["loc"]) == param)
    said = " or ".join(text.removeprefix("Value error, ") for text in told)
    return invalid(f"{param}: {said}" if param else said, param or None)


def _path(place: Sequence[int | str]) -> str:
    """`messages[0].content`, from the keys and indices that lead there."""
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        elif "[" in step or step in _MEMBERS:
            break
        else:
            path += f".{step}" if path else step
    return path
