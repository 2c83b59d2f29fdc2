"""The fields of a request: their types, ranges and defaults, and what happens to all other fields.

Pure data. What a field does is in `fields` and in the endpoints; conversations and tools have a
page of their own, `conversation`, since their shape is the client's.

Source: OpenAI's API reference (chat completions, completions); other fields are vLLM's.
"""

import logging
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from mkport.engine.server.errors import from_pydantic, invalid

log = logging.getLogger("mkport.server")

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_TOP = 20
MAX_LISTED = 1024  # ids in stop_token_ids and logit_bias
INT64 = 1 << 63


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: 16.0 is a whole one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _few(value: Any) -> Any:
    """Checked before its items, each of which could be an error of its own."""
    if isinstance(value, dict) and len(value) > MAX_LISTED:
        raise ValueError(f"at most {MAX_LISTED} entries are taken")
    return value


WHOLE = BeforeValidator(_whole)
Penalty = Annotated[float, Field(ge=-2, le=2)]
Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, Field(ge=0), WHOLE]
JsonObject = dict[str, Any]
_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
Message = Annotated[
    JsonObject,
    WithJsonSchema(
        {
            "type": "object",
            "required": ["role", "content"],
            "properties": {
                "role": {"type": "string", "minLength": 1},
                "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]},
            },
        }
    ),
]
Tool = Annotated[
    JsonObject,
    WithJsonSchema(
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,256}$"},
                        "description": {"type": "string"},
                        "parameters": {"type": "object"},
                    },
                },
            },
        }
    ),
]
# a list's first wrong item is told, not each
Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]
Tools = Annotated[list[Tool], Field(fail_fast=True)]


class Fields(BaseModel):
    """Strict types, since a string where a number belongs is a mistake; unknown fields are kept for
    `strange_fields` to judge."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class StreamOptions(Fields):
    """What a stream tells beside its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Fields):
    """A schema that the answer must fit; it is always enforced, whatever `strict` says."""

    name: str | None = None
    description: str | None = None
    schema_: JsonObject = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Fields):
    """What the answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Fields):
    """vLLM's way to say what the answer must be: one of the four."""

    json_: JsonObject | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=1000, fail_fast=True)] | None = None
    grammar: str | None = None


class Generation(Fields):
    """The fields that /v1/chat/completions and /v1/completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), WHOLE] | None = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64), WHOLE] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: (
        Annotated[list[TokenId], Field(max_length=MAX_LISTED, fail_fast=True)] | None
    ) = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-9, le=10)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_LISTED)]
        | None
    ) = None
    min_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


class ChatRequest(Generation):
    """The body of POST /v1/chat/completions."""

    messages: Messages
    max_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP), WHOLE] | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    reasoning_effort: str | None = None


Texts = Annotated[list[str], Field(fail_fast=True)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Prompt = str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]


class CompletionRequest(Generation):
    """The body of POST /v1/completions."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None  # 0 with echo alone
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP), WHOLE] | None = None
    echo: bool | None = None


class TokenizeRequest(Fields):
    """The body of POST /tokenize: a prompt, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Fields):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: TokenIds


# Fields that only label a request, or that serve a provider's bookkeeping: no answer depends on
# them, here or elsewhere.
LABELS = frozenset(
    ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
    + ("request_id",)
)

# Fields that are known elsewhere and are not implemented, with the values that ask for nothing.
NOT_IMPLEMENTED: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (None, []),
    "audio": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "cache_salt": (None,),
    "chat_template": (None,),
    "documents": (None, []),
    "dry_multiplier": (None, 0),
    "ebnf": (None,),
    "echo": (None, False),
    "function_call": (None,),
    "functions": (None,),
    "grammar": (None, ""),
    "guided_choice": (None,),
    "guided_decoding_backend": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_whitespace_pattern": (None,),
    "include_reasoning": (None, True),
    "include_stop_str_in_output": (None, False),
    "json_schema": (None,),
    "kv_transfer_params": (None,),
    "length_penalty": (None, 1),
    "logits_processors": (None, []),
    "mirostat": (None, 0),
    "mm_processor_kwargs": (None,),
    "modalities": (None, ["text"]),
    "n_predict": (None, -1),
    "prediction": (None,),
    "priority": (None, 0),
    "prompt_embeds": (None,),
    "prompt_logprobs": (None,),
    "regex": (None,),
    "return_token_ids": (None, False),
    "return_tokens_as_token_ids": (None, False),
    "service_tier": (None, "auto", "default"),
    "spaces_between_special_tokens": (None, True),
    "store": (None, False),
    "suffix": (None, ""),
    "truncate_prompt_tokens": (None,),
    "typical_p": (None, 1),
    "use_beam_search": (None, False),
    "verbosity": (None, "medium"),
    "vllm_xargs": (None,),
    "web_search_options": (None,),
    "xtc_probability": (None, 0),
}

INSTEAD = {
    "chat_template": "a template is code, and never taken from a request",
    "ebnf": "send structured_outputs",
    "echo": "the answer's beginning goes into a last message of the assistant's",
    "function_call": "send tool_choice",
    "functions": "send tools",
    "grammar": "send structured_outputs",
    "guided_choice": "send structured_outputs",
    "guided_grammar": "send structured_outputs",
    "guided_json": "send response_format",
    "guided_regex": "send structured_outputs",
    "json_schema": "send response_format",
    "n_predict": "send max_tokens",
    "regex": "send structured_outputs",
}

_MAX_WARNED = 1000
_warned: set[str] = set()

Body = TypeVar("Body", bound=Fields)


def parse(kind: type[Body], body: bytes) -> Body:
    """A request's body as its model. Raises ApiError naming the first wrong field."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise from_pydantic(error) from None
    for name, value in _strange(request, ""):
        judge(name, value)
    return request


def judge(name: str, value: Any) -> None:
    """What becomes of a field that is not in the schema. Raises ApiError if it asks for something
    that is known and not implemented; warns once about a name that nobody knows."""
    if name in LABELS:
        return
    neutral = NOT_IMPLEMENTED.get(name)
    if neutral is None:
        if name not in _warned and len(_warned) < _MAX_WARNED:
            _warned.add(name)
            log.warning("unknown field", extra={"fields": {"field": name[:100]}})
    elif value not in neutral:
        instead = INSTEAD.get(name, "leave it out")
        raise invalid(f"{name} is not implemented: {instead}.", name)


def _strange(fields: Fields, path: str) -> Iterator[tuple[str, Any]]:
    """The fields of a request that its model does not have, those of its parts too."""
    for name, value in (fields.model_extra or {}).items():
        yield path + name, value
    for name in type(fields).model_fields:
        part = getattr(fields, name)
        if isinstance(part, Fields):
            yield from _strange(part, f"{path}{name}.")
