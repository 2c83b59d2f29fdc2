"""The grammars that make a model write its calls, and its answers in JSON, in the way the parsers
read: in llguidance's form of Lark. What each format puts around a call is in its own function.

Source: llguidance's docs/syntax.md for the form; the formats are those of the parsers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mkport.engine.grammar import LAYOUT
from mkport.engine.parsers import cohere, hermes, llama3
from mkport.engine.request import Grammar
from mkport.errors import UserError

# As Python writes JSON, which is what models were taught with.
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANYTHING = r"TEXT: /(.|\n)*/"
GAP = r"GAP: /[ \n]{0,8}/"


@dataclass(frozen=True)
class Wanted:
    """What a reply must be like.

    `choice` is "auto", "none", "required" or "=NAME" for the one tool to call; `answer` a JSON
    schema for the content, None if it is free; `thinking` whether the prompt has opened the
    reasoning, `reasons` whether the model may do so itself; `marker` gives the Lark expression of a
    marker's text.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    choice: str = "auto"
    parallel: bool = True
    answer: Mapping[str, Any] | None = None
    thinking: bool = False
    reasons: bool = True
    marker: Callable[[str], str] = json.dumps

    @property
    def forced(self) -> bool:
        """Whether there must be a call."""
        return self.choice not in ("auto", "none")

    @property
    def callable(self) -> list[Mapping[str, Any]]:
        """The functions that may be called."""
        if self.choice == "none":
            return []
        named = self.choice.removeprefix("=") if self.choice.startswith("=") else None
        functions = [tool["function"] for tool in self.tools]
        return [f for f in functions if named in (None, f["name"])]


def plain_grammar(wanted: Wanted) -> Grammar | None:
    """Content in JSON, or none at all. Raises UserError for a call that is forced."""
    if wanted.forced:
        raise UserError(
            "This model's chat template has no known way to write tool calls, so none can be "
            "forced. Name its format when starting the server, or leave tool_choice out."
        )
    return None if wanted.answer is None else Grammar("json_schema", json.dumps(wanted.answer))


def hermes_grammar(wanted: Wanted) -> Grammar | None:
    """Calls in <tool_call>, each with a name and arguments."""
    m, functions = wanted.marker, wanted.callable
    if not functions and wanted.answer is None:
        return None
    think = _before("think", m(hermes.END_THINK))
    opened = _reasoning(wanted, m(hermes.THINK))
    call = f'"\\n" object "\\n" {m(hermes.END_CALL)}'
    rules = _objects(functions, "arguments", '{{"name": {name}, "{key}": ')
    calls = f"{m(hermes.CALL)} {call}"
    many = f'{calls} ("\\n" {calls})*' if wanted.parallel else calls
    if not functions:
        start = f"{opened} answer"
    elif wanted.forced:
        start = f"{opened} {many}"
    elif wanted.answer is not None:
        start = f"{opened} ({many} | answer)"
    else:
        rules += _before("until_call", m(hermes.CALL))
        if not wanted.thinking and not _token(m(hermes.THINK)):
            opened = ""  # then reasoning is text like any other, up to the first call
        start = f"{opened} (until_call {call}){'*' if wanted.parallel else '?'} TEXT"
    return _lark(start, [*rules, *think, *_answer(wanted)])


def cohere_grammar(wanted: Wanted) -> Grammar | None:
    """One action with all calls, or text; reasoning before it."""
    m, functions = wanted.marker, wanted.callable
    if not functions and wanted.answer is None:
        return None
    think = _before("think", m(cohere.END_THINKING))
    opened = _reasoning(wanted, m(cohere.THINKING))
    head = '{{"tool_call_id": "@", "tool_name": {name}, "{key}": '
    rules = [*_objects(functions, "parameters", head), "NUMBER: /0|[1-9][0-9]?/"]
    more = '("," GAP object)*' if wanted.parallel else ""
    calls = f'GAP "[" GAP object {more} GAP "]" GAP {m(cohere.END_ACTION)}'
    action = f"{m(cohere.ACTION)} {calls}"
    content = "TEXT" if wanted.answer is None else "answer"
    text = f"{m(cohere.TEXT)} {content} {m(cohere.END_TEXT)}"
    if not functions:
        start = f"{opened} {text}"
    elif wanted.forced:
        start = f"{opened} {action}"
    elif wanted.answer is not None:
        start = f"{opened} ({action} | {text})"
    elif _token(m(cohere.ACTION)):
        start = f"{opened} ({text} GAP ({action})? | TEXT ({action})?)"
    else:  # then text markers are text like any other
        rules += _before("until_action", m(cohere.ACTION))
        start = f"{'think GAP' if wanted.thinking else ''} (until_action {calls} | TEXT)"
    return _lark(start, [*rules, *think, *_answer(wanted)])


def llama3_grammar(wanted: Wanted) -> Grammar | None:
    """Calls as bare objects, a semicolon between them."""
    functions = wanted.callable
    if not functions:
        return plain_grammar(wanted)
    rules = _objects(functions, "parameters", '{{"name": {name}, "{key}": ')
    # beside an answer in JSON, which may begin with the same letters, calls need their tag
    tag = wanted.marker(llama3.TAG) + ("?" if wanted.answer is None else "")
    calls = f"{tag} object" + (' ("; " object)*' if wanted.parallel else "")
    if wanted.forced:
        start = calls
    elif wanted.answer is not None:
        start = f"{calls} | answer"
    else:
        start = f"{calls} | OTHER"
        rules.append(r"OTHER: /([ \n]*[^{ \n](.|\n)*)?/")
    return _lark(start, [*rules, *_answer(wanted)])


def _objects(functions: Sequence[Mapping[str, Any]], key: str, head: str) -> list[str]:
    """The rule `object`: one of the calls, each with its own schema. "@" in a head is a number."""
    rules = []
    for i, function in enumerate(functions):
        parts = head.format(name=json.dumps(function["name"], ensure_ascii=False), key=key).split(
            "@"
        )
        opening = " NUMBER ".join(map(json.dumps, parts))
        schema = _schema(function.get("parameters"), bool(function.get("strict")))
        rules.append(f'object_{i}: {opening} %json {schema} "}}"')
    if functions:
        rules.append("object: " + " | ".join(f"object_{i}" for i in range(len(functions))))
    return rules


def _schema(parameters: Mapping[str, Any] | None, strict: bool) -> str:
    """A tool's parameters, which are an object whatever else they say. Unless the tool is `strict`,
    what the library has not implemented is passed over, and oneOf is taken as anyOf."""
    if not parameters:
        parameters = {"properties": {}, "additionalProperties": False}
    options = {**COMPACT, **({} if strict else {"lenient": True})}
    return json.dumps({"type": "object", **parameters, "x-guidance": options})


def _reasoning(wanted: Wanted, marker: str) -> str:
    """What may stand before everything else."""
    if wanted.thinking:
        return "think GAP"
    return f"({marker} think GAP)?" if wanted.reasons else ""


def _answer(wanted: Wanted) -> list[str]:
    if wanted.answer is None:
        return []
    return [f"answer: %json {json.dumps({**wanted.answer, 'x-guidance': LAYOUT})}"]


def _before(rule: str, marker: str) -> list[str]:
    """A rule for any text up to a marker and with it: the first one, so lazy if it is ordinary
    text. A marker that is a token of its own never is part of a text."""
    if _token(marker):
        return [f"{rule}: TEXT {marker}"]
    return [f"{rule}[lazy]: TEXT {marker}"]


def _token(marker: str) -> bool:
    return marker.startswith("<[")


def _lark(start: str, rules: Sequence[str]) -> Grammar:
    return Grammar("lark", "\n".join([f"start: {start}", *rules, ANYTHING, GAP]) + "\n")
