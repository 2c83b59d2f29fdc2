"""From a request's fields to the engine's `Sampling`: defaults, limits, and what must agree.

A field's own range is in `schema`; here are the checks that need the model or another field.
"""

import json
import re
from collections.abc import Mapping

from mkport.engine.request import Grammar, Sampling
from mkport.engine.server.errors import ApiError, invalid, too_long
from mkport.engine.server.schema import Generation


def sampling(
    request: Generation,
    *,
    prompt_tokens: int,
    max_tokens: int | None,
    context: int,
    vocab: int,
    defaults: Mapping[str, float],
    param: str,
    limit: str = "max_tokens",
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    grammar: Grammar | None = None,
    skip_special: bool = True,
) -> Sampling:
    """What the engine is told, everything checked.

    `max_tokens` is the value of the field `limit`, None for the rest of the context, which is in
    positions; `param` the field of the prompt. Raises ApiError: 400 that names the field.
    """
    room = context - prompt_tokens
    if room < (0 if max_tokens == 0 else 1):
        raise too_long(context, prompt_tokens, param)
    if max_tokens is not None and max_tokens > context:
        raise invalid(
            f"{limit} is {short(max_tokens)}, but the model's context is {context} tokens. "
            "Lower it, or leave it out for the rest of the context.",
            limit,
        )
    most = room if max_tokens is None else min(max_tokens, room)
    least = request.min_tokens or 0
    if least > (context if max_tokens is None else max_tokens):
        raise invalid(
            f"min_tokens is {short(least)}, but at most {most} tokens are generated.", "min_tokens"
        )

    def chosen(name: str, otherwise: float) -> float:
        value = getattr(request, name)
        return float(defaults.get(name, otherwise) if value is None else value)

    skip = request.skip_special_tokens
    return Sampling(
        max_tokens=most,
        temperature=chosen("temperature", 1.0),
        top_p=chosen("top_p", 1.0),
        top_k=_top_k(int(chosen("top_k", 0)), vocab),
        min_p=chosen("min_p", 0.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=chosen("repetition_penalty", 1.0),
        logit_bias=_logit_bias(request.logit_bias or {}, vocab),
        seed=request.seed,
        min_tokens=min(least, most),
        ignore_eos=bool(request.ignore_eos),
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        stop_token_ids=tuple(known(request.stop_token_ids or [], vocab, "stop_token_ids")),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
        skip_special=skip_special and skip is not False,
    )


def check(request: Generation) -> None:
    """What is wrong without knowing the prompt. Raises ApiError."""
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options needs stream to be true.", "stream_options")


def grammar(request: Generation) -> Grammar | None:
    """What `response_format` or `structured_outputs` make of the answer.

    Raises ApiError when both are there, or one without its content.
    """
    given = request.structured_outputs
    form = request.response_format
    if given is not None:
        if form is not None and form.type != "text":
            raise invalid("Send response_format or structured_outputs, not both.")
        asked = {"json": given.json_, "regex": given.regex, "choice": given.choice}
        asked["grammar"] = given.grammar
        if sum(value is not None for value in asked.values()) != 1:
            raise invalid(
                "structured_outputs takes exactly one of json, regex, choice and grammar.",
                "structured_outputs",
            )
        if given.json_ is not None:
            text = given.json_ if isinstance(given.json_, str) else json.dumps(given.json_)
            return Grammar("json_schema", text)
        if given.choice is not None:
            return Grammar("regex", "|".join(f"(?:{_escaped(text)})" for text in given.choice))
        if given.regex is not None:
            return Grammar("regex", given.regex)
        return Grammar("lark", given.grammar or "")
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return Grammar("json_object")
    if form.json_schema is None:
        raise invalid(
            "response_format of type json_schema needs the object json_schema.", "response_format"
        )
    return Grammar("json_schema", json.dumps(form.json_schema.schema_))


def grammar_field(request: Generation) -> str | None:
    """The field that `grammar` reads."""
    if request.structured_outputs is not None:
        return "structured_outputs"
    return None if request.response_format is None else "response_format"


def known(ids: list[int], vocab: int, param: str) -> list[int]:
    """The `ids` [tokens], if the vocabulary has them. Raises ApiError naming the first that it
    lacks."""
    if ids and max(ids) >= vocab:
        raise _outside(next(i for i in ids if i >= vocab), vocab, param)
    return ids


def short(number: int) -> str:
    """A number as text; one that nobody would read, as its length."""
    return str(number) if abs(number) < 10**20 else "a number of more than 20 digits"


def _top_k(top_k: int, vocab: int) -> int:
    return 0 if top_k < 1 or top_k >= vocab else top_k


def _logit_bias(bias: Mapping[str, float], vocab: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for text, value in bias.items():
        if not re.fullmatch("[0-9]{1,10}", text):
            raise invalid(f"logit_bias: {text[:40]!r} is not a token id.", "logit_bias")
        if int(text) >= vocab:
            raise _outside(int(text), vocab, "logit_bias")
        found[int(text)] = value
    return found


def _outside(token: int, vocab: int, param: str) -> ApiError:
    return invalid(
        f"{param}: the token id {short(token)} is outside the vocabulary of {vocab}.", param
    )


def _escaped(text: str) -> str:
    """The pattern that matches just this text; unlike `re.escape`, in every dialect of patterns."""
    return re.sub(r"[\\^$.|?*+()\[\]{}/]", r"\\\g<0>", text)
