"""The shapes of answers, for the OpenAPI page alone: answers are written by hand in `wire` and the
endpoints, and a test holds the two together.

Source: OpenAI's API reference (chat completions, completions, models); the token endpoints are
vLLM's.
"""

from typing import Literal

from pydantic import BaseModel


class TokensDetails(BaseModel):
    """How many tokens of a prompt were in the cache."""

    cached_tokens: int


class UsageReply(BaseModel):
    """The tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: TokensDetails


class TopLogprob(BaseModel):
    """A token that could have been."""

    token: str
    logprob: float  # in nats
    bytes: list[int]  # [bytes] of its text in UTF-8


class ChatLogprob(TopLogprob):
    """A token that was chosen."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """The log probabilities of an answer's tokens."""

    content: list[ChatLogprob]


class CalledFunction(BaseModel):
    """A function's name and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call that the model wants."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(BaseModel):
    """What the model said."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


Finish = Literal["stop", "length", "tool_calls"]


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatCompletion(BaseModel):
    """The answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply


class LegacyLogprobs(BaseModel):
    """The log probabilities of a text's tokens."""

    text_offset: list[int]  # [tokens] in characters
    token_logprobs: list[float | None]  # [tokens]
    tokens: list[str]  # [tokens]
    top_logprobs: list[dict[str, float] | None]  # [tokens]


class TextChoice(BaseModel):
    """One continuation."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: Literal["stop", "length"]


class Completion(BaseModel):
    """The answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageReply


class Model(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(BaseModel):
    """The answer of GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Tokenized(BaseModel):
    """The answer of POST /tokenize."""

    tokens: list[int]  # [count]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class Detokenized(BaseModel):
    """The answer of POST /detokenize."""

    prompt: str


class TokenizerInfo(BaseModel):
    """The answer of GET /tokenizer_info."""

    vocab_size: int  # in tokens
    eos_token_ids: list[int]  # [ids that end an answer]
    chat_template: str | None
    max_model_len: int


class Version(BaseModel):
    """The answer of GET /version."""

    version: str
