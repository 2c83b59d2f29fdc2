"""What a grammar lets through, the parser of its format reads back: calls of real tools with
arguments that keep their schema, as many as are allowed; JSON answers; reasoning first."""

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from mkport.engine.grammar import Grammars
from mkport.engine.parsers import FORMATS, Reply, Wanted, joined
from mkport.engine.request import Grammar, Sampling
from mkport.engine.sampling import Sampler
from mkport.engine.synth import byte_tokenizer
from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError

MODES = {"enum": ["fast", "</tool_call>", "<|END_ACTION|>", 'é"}']}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "mode": MODES,
                    "depth": {"type": "integer", "maximum": 9, "minimum": 0},
                },
                "required": ["mode", "depth"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": 'say"é', "description": "no parameters"}},
]
ANSWER = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
VOCAB = 300


@cache
def tokenizer(directory: Path, special: bool) -> Tokenizer:
    """Single bytes, and with `special` every format's markers as tokens of their own."""
    byte_tokenizer(directory, VOCAB)
    if special:
        backend = Backend.from_file(str(directory / "tokenizer.json"))
        markers = [marker for form in FORMATS.values() for marker in form.markers]
        backend.add_tokens([AddedToken(m, special=True, normalized=False) for m in markers])
        backend.save(str(directory / "tokenizer.json"))
    return Tokenizer.load(directory)


@pytest.fixture(scope="module", params=[True, False], ids=["special", "text"])
def grammars(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Grammars, Tokenizer]:
    made = tokenizer(tmp_path_factory.mktemp("markers"), request.param)
    return Grammars(made, VOCAB), made


def marker(tokens: Tokenizer, text: str) -> str:
    token = tokens.special_id(text)
    return json.dumps(text) if token is None else f"<[{token}]>"


def write(grammars: tuple[Grammars, Tokenizer], grammar: Grammar, seed: int, eager: str) -> str:
    """A reply of a model that draws any allowed byte, but loves markers and begins with `eager` if
    it may, and wants to come to an end after a while."""
    matcher, tokens = grammars[0].matcher(grammar), grammars[1]
    sampler, ids = Sampler(Sampling(max_tokens=1500), seed=seed), list[int]()
    end, wishes = tokens.eos_ids[0], tokens.encode(eager, add_special=False)
    close = [tokens.encode(closing(form), add_special=False) for form in ("hermes", "cohere")]
    while not matcher.finished:
        logits = np.zeros(VOCAB, np.float32)
        logits[258:] = 3
        late = len(ids) - len(wishes) - 30
        logits[end] = -3 if late < 0 else 60
        if len(ids) < len(wishes):
            logits[wishes[len(ids)]] = 30
        elif late >= 0:  # reasoning, if it began, ends by one of the two markers
            both = close[0] + close[1]
            logits[both[late % len(both)]] = 30
        token = sampler.choose(logits, matcher.mask(), len(ids))
        if token == end:
            break
        matcher.accept(token)
        ids.append(token)
        assert len(ids) < 1500
    return b"".join(map(tokens.token_bytes, ids)).decode(errors="replace")


def reply(
    grammars: tuple[Grammars, Tokenizer], form: str, seed: int, eager: str = "", **wanted: Any
) -> tuple[str, Reply]:
    wish = Wanted(marker=partial(marker, grammars[1]), **wanted)
    grammar = FORMATS[form].grammar(wish)
    assert grammar is not None
    text = write(grammars, grammar, seed, eager)
    parser = FORMATS[form].parser(thinking=wish.thinking, names=["f", 'say"é'])
    return text, joined([*parser.push(text), *parser.finish()])


def check_calls(got: Reply) -> None:
    for call in got.calls:
        arguments = json.loads(call.arguments)
        if call.name == "f":
            assert list(arguments) == ["mode", "depth"] and arguments["mode"] in MODES["enum"]
            assert 0 <= arguments["depth"] <= 9
        else:
            assert (call.name, arguments) == ('say"é', {})


TOOL_FORMS = ["hermes", "llama3", "cohere"]


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("form", TOOL_FORMS)
def test_a_forced_call_is_made_and_nothing_else(
    grammars: tuple[Grammars, Tokenizer], form: str, thinking: bool
) -> None:
    thinking = thinking and form != "llama3"
    eager = "so" + closing(form) if thinking else ""
    numbers = set()
    for seed in range(6):
        _, got = reply(
            grammars, form, seed, eager, tools=TOOLS, choice="required", thinking=thinking
        )
        check_calls(got)
        numbers.add(len(got.calls))
        assert got.calls and not got.content and got.reasoning.startswith("so" if thinking else "")
        _, got = reply(
            grammars, form, seed, eager, tools=TOOLS, choice="=f", parallel=False, thinking=thinking
        )
        check_calls(got)
        assert [call.name for call in got.calls] == ["f"] and not got.content
    assert 0 not in numbers


def closing(form: str) -> str:
    return {"hermes": "</think>", "cohere": "<|END_THINKING|>"}[form]


@pytest.mark.parametrize("form", TOOL_FORMS)
def test_several_calls_only_where_they_may_be_parallel(
    grammars: tuple[Grammars, Tokenizer], form: str
) -> None:
    name = '"name": "say\\"é"'
    cohere = f'"tool_call_id": "0", "tool_{name[1:]}, "parameters": {{}}'
    two = {
        "hermes": f'<tool_call>\n{{{name}, "arguments": {{}}}}\n</tool_call>\n<tool_call>',
        "llama3": f'{{{name}, "parameters": {{}}}}; {{',
        "cohere": f"<|START_ACTION|>[{{{cohere}}}, {{",
    }[form]
    _, got = reply(grammars, form, 0, two, tools=TOOLS, choice="required")
    assert len(got.calls) >= 2
    check_calls(got)
    for choice in ("required", "auto"):
        _, got = reply(grammars, form, 0, two, tools=TOOLS, choice=choice, parallel=False)
        assert len(got.calls) == 1
        check_calls(got)


@pytest.mark.parametrize("form", TOOL_FORMS)
def test_a_free_choice_gives_text_or_calls_that_keep_their_schema(
    grammars: tuple[Grammars, Tokenizer], form: str
) -> None:
    begins = {"hermes": "Hi <tool_call>", "llama3": '{"', "cohere": "<|START_ACTION|>"}[form]
    for seed in range(4):
        text, got = reply(grammars, form, seed, "Hello <b>", tools=TOOLS)
        assert (text + got.content + got.reasoning).count("Hello <b>") == 2
        check_calls(got)
        _, got = reply(grammars, form, seed, begins, tools=TOOLS)
        assert got.calls
        check_calls(got)


@pytest.mark.parametrize("form", ["plain", *TOOL_FORMS])
def test_an_answer_in_json_is_all_there_is(grammars: tuple[Grammars, Tokenizer], form: str) -> None:
    for seed in range(3):
        _, got = reply(grammars, form, seed, answer=ANSWER)
        assert list(json.loads(got.content)) == ["ok"] and not got.calls
    if form != "plain":
        kinds = set()
        for eager in (
            "",
            "{",
            "<tool_call>",
            "<|START_ACTION|>",
            '{"name',
            '{"ok',
            "<|START_TEXT|>",
        ):
            _, got = reply(grammars, form, 1, eager, answer=ANSWER, tools=TOOLS)
            assert bool(got.calls) != bool(got.content)
            kinds.add(bool(got.calls))
            check_calls(got)
            assert got.calls or list(json.loads(got.content)) == ["ok"]
        assert kinds == {True, False}


@pytest.mark.parametrize("form", ["hermes", "cohere"])
def test_reasoning_comes_before_an_answer_in_json(
    grammars: tuple[Grammars, Tokenizer], form: str
) -> None:
    _, got = reply(grammars, form, 0, "hm, 2" + closing(form), answer=ANSWER, thinking=True)
    assert got.reasoning == "hm, 2" and list(json.loads(got.content)) == ["ok"]
    opened = FORMATS[form].opened
    _, got = reply(grammars, form, 0, f"{opened}hm{closing(form)}", answer=ANSWER)
    assert got.reasoning == "hm" and list(json.loads(got.content)) == ["ok"]


def test_nothing_wanted_is_no_grammar_and_plain_cannot_be_forced() -> None:
    for form in FORMATS.values():
        assert form.grammar(Wanted()) is None
        assert form.grammar(Wanted(tools=TOOLS, choice="none")) is None
    assert FORMATS["plain"].grammar(Wanted(tools=TOOLS)) is None
    with pytest.raises(UserError, match="no known way to write tool calls"):
        FORMATS["plain"].grammar(Wanted(tools=TOOLS, choice="required"))


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("form", TOOL_FORMS)
def test_a_schema_that_is_not_implemented_is_refused_where_it_is_a_promise(
    grammars: tuple[Grammars, Tokenizer], form: str, choice: str
) -> None:
    either = [{"properties": {name: {"type": "string"}}, "required": [name]} for name in "xy"]
    schema = {"type": "object", "propertyNames": {}, "oneOf": either}
    function: dict[str, Any] = {"name": "my_tool", "parameters": schema}
    for strict in (True, False):
        tools = [{"type": "function", "function": {**function, "strict": strict}}]
        grammar = FORMATS[form].grammar(Wanted(tools=tools, choice=choice))
        assert grammar is not None
        if strict:
            with pytest.raises(
                UserError, match=r"Unimplemented keys: .*\(line \d: .*my_tool"
            ) as error:
                grammars[0].matcher(grammar)
            assert len(str(error.value)) < 300
        else:
            assert grammars[0].matcher(grammar)
