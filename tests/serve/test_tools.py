"""Tool calls, reasoning and enforced formats, through the server: what the client sees of them, and
what the engine is told to enforce. How text is cut into calls is tested with the parsers."""

import json
from typing import Any

import pytest

from mkport.engine.grammar import Grammars
from mkport.engine.parsers import cohere
from mkport.engine.request import Grammar
from tests.serve.live import Live, serving
from tests.serve.scripted import CHATML, ScriptedEngine, byte_tokenizer

ASK: Any = [{"role": "user", "content": "What is the weather?"}]


def tool(name: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS: Any = [tool("weather"), tool("time")]


def called(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


TWO = called("weather", '{"city": "Rome </tool_call> \\"x\\""}') + "\n" + called("time", "{}")


def streamed(live: Live, **fields: Any) -> tuple[list[dict[str, Any]], str, list[str]]:
    """A stream's calls put together, its text, and how it ended."""
    body = {"messages": ASK, "tools": TOOLS, **fields}
    calls: list[dict[str, Any]] = []
    text = ""
    reasons = []
    for event in live.events("/v1/chat/completions", body)[:-1]:
        (choice,) = event["choices"]
        text += choice["delta"].get("content") or ""
        for part in choice["delta"].get("tool_calls", ()):
            if part["index"] == len(calls):
                assert part["type"] == "function" and part["id"]
                calls.append({"id": part["id"], "name": part["function"]["name"], "text": ""})
            else:
                assert part["index"] == len(calls) - 1 and "id" not in part
                assert set(part["function"]) == {"arguments"}
            calls[-1]["text"] += part["function"]["arguments"]
        if choice["finish_reason"]:
            reasons.append(choice["finish_reason"])
    return calls, text, reasons


def test_calls_are_the_same_streamed_and_whole(live: Live) -> None:
    live.engine.script = lambda asked: "Let me see.\n" + TWO
    answer = live.client().chat.completions.create(model="scripted", messages=ASK, tools=TOOLS)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content
    whole = [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]  # type: ignore[union-attr]
    assert whole[0][0] == "weather"
    assert json.loads(whole[0][1]) == {"city": 'Rome </tool_call> "x"'}
    assert whole[1] == ("time", "{}")
    calls, text, reasons = streamed(live)
    assert [(call["name"], call["text"]) for call in calls] == whole
    assert len({call["id"] for call in calls}) == 2
    assert text == choice.message.content and text.strip() == "Let me see."
    assert reasons == ["tool_calls"]


@pytest.mark.parametrize(
    ("stop", "reason", "arguments"),
    [
        ("Ro", "stop", '{"city": "'),
        ("ome", "stop", '{"city": "R'),
        ("}}", "stop", '{"city": "Rome"'),
        ("\n</tool_call>", "tool_calls", '{"city": "Rome"}'),
    ],
)
def test_a_call_cut_by_a_stop_string_is_none_to_make(
    live: Live, stop: str, reason: str, arguments: str
) -> None:
    live.engine.script = lambda asked: called("weather", '{"city": "Rome"}')
    (choice,) = live.chat(tools=TOOLS, stop=stop).json()["choices"]
    assert choice["finish_reason"] == reason
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] == arguments
    calls, text, reasons = streamed(live, stop=stop)
    assert [call["text"] for call in calls] == [arguments] and not text and reasons == [reason]


def test_the_format_can_be_named() -> None:
    engine = ScriptedEngine(lambda asked: '{"name": "time", "parameters": {}}')
    with serving(engine, format="llama3") as live:
        (call,) = live.chat(tools=TOOLS).json()["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "time", "arguments": "{}"}


def test_only_calls_leave_the_content_null(live: Live) -> None:
    live.engine.script = lambda asked: called("time", '{"city": "x"}')
    message = live.chat(tools=TOOLS).json()["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 1


def test_one_call_at_most_if_asked(live: Live) -> None:
    live.engine.script = lambda asked: TWO
    message = live.chat(tools=TOOLS, parallel_tool_calls=False).json()["choices"][0]["message"]
    assert len(message["tool_calls"]) == 1
    assert len(streamed(live, parallel_tool_calls=False)[0]) == 1


def test_a_call_that_the_limit_cuts_ends_with_length(live: Live) -> None:
    live.engine.script = lambda asked: called("weather", '{"city": "Rome"}')
    for limit in (20, 45, 55):
        choice = live.chat(tools=TOOLS, max_tokens=limit).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        calls, _, reasons = streamed(live, max_tokens=limit)
        assert reasons == ["length"]
        parts = choice["message"].get("tool_calls", [])
        assert [call["text"] for call in calls] == [p["function"]["arguments"] for p in parts]


def test_reasoning_has_a_field_of_its_own(live: Live) -> None:
    live.engine.script = lambda asked: "<think>\nHm, so.\n</think>\n\nYes."
    message = live.chat().json()["choices"][0]["message"]
    assert message["content"] == "Yes." and message["reasoning_content"].strip() == "Hm, so."
    events = live.events("/v1/chat/completions", {"messages": ASK})[:-1]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(d.get("reasoning_content", "") for d in deltas).strip() == "Hm, so."
    assert "".join(d.get("content", "") for d in deltas) == "Yes."


def grammar(live: Live, **fields: Any) -> Grammar | None:
    """What the engine is told to enforce."""
    live.engine.submitted.clear()
    response = live.chat(**fields)
    assert response.status_code == 200, response.text
    found: Grammar | None = live.engine.submitted[0][1].grammar
    return found


def fits(live: Live, grammar: Grammar, text: str) -> bool:
    """Whether a text belongs to a grammar, by the library that enforces it."""
    matcher = Grammars(live.engine.tokenizer, live.engine.vocab).matcher(grammar)
    try:
        for token in live.engine.tokenizer.encode(text, add_special=False):
            matcher.accept(token)
    except Exception:
        return False
    return matcher.may_stop


def test_a_call_that_is_required_is_enforced(live: Live) -> None:
    required = grammar(live, tools=TOOLS, tool_choice="required")
    assert required is not None
    assert fits(live, required, called("weather", '{"city": "Rome"}'))
    assert fits(live, required, called("time", '{"city": "Rome"}'))
    assert not fits(live, required, "Rome")
    assert not fits(live, required, called("weather", '{"town": "Rome"}'))
    assert not fits(live, required, called("other", '{"city": "Rome"}'))


def test_a_named_call_is_enforced(live: Live) -> None:
    choice = {"type": "function", "function": {"name": "time"}}
    named = grammar(live, tools=TOOLS, tool_choice=choice)
    assert named is not None
    assert fits(live, named, called("time", '{"city": "Rome"}'))
    assert not fits(live, named, called("weather", '{"city": "Rome"}'))


def test_json_is_enforced(live: Live) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    by_schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for fields in ({"response_format": by_schema}, {"structured_outputs": {"json": schema}}):
        made = grammar(live, **fields)
        assert made is not None
        assert fits(live, made, '{"a": 3}') and not fits(live, made, '{"b": 3}')
    some = grammar(live, response_format={"type": "json_object"})
    assert some is not None and fits(live, some, '{"b": [3]}') and not fits(live, some, "3")
    body = {"prompt": "x", "response_format": by_schema}
    live.engine.submitted.clear()
    assert live.post("/v1/completions", body).status_code == 200
    made = live.engine.submitted[0][1].grammar
    assert made is not None and fits(live, made, '{"a": 3}')


def test_only_a_model_that_was_taught_to_reason_may_do_so_before_json(live: Live) -> None:
    asked = {"response_format": {"type": "json_object"}}
    thought = "<think>\nHm.\n</think>\n\n{}"
    made = grammar(live, **asked)
    assert made is not None and fits(live, made, "{}") and not fits(live, made, thought)
    template = CHATML + "{# <think> #}"
    with serving(ScriptedEngine(tokenizer=byte_tokenizer(template))) as reasoner:
        made = grammar(reasoner, **asked)
        assert made is not None and fits(reasoner, made, "{}") and fits(reasoner, made, thought)


def test_patterns_and_choices_are_enforced(live: Live) -> None:
    choice = grammar(live, structured_outputs={"choice": ["a.b", "c|d", "(e)", "\\d+/"]})
    assert choice is not None
    for text in ("a.b", "c|d", "(e)", "\\d+/"):
        assert fits(live, choice, text), text
    for text in ("axb", "c", "e", "7/"):
        assert not fits(live, choice, text), text
    pattern = grammar(live, structured_outputs={"regex": "[0-9]{3}"})
    assert pattern is not None and fits(live, pattern, "123") and not fits(live, pattern, "12")
    lark = grammar(live, structured_outputs={"grammar": 'start: "x" | "y"'})
    assert lark is not None and fits(live, lark, "y") and not fits(live, lark, "z")


def test_without_a_wish_nothing_is_enforced(live: Live) -> None:
    assert grammar(live) is None
    assert grammar(live, response_format={"type": "text"}) is None


@pytest.mark.parametrize("name", ["null", "[]", "3", '"x"', "not JSON"])
def test_a_schema_that_is_none(live: Live, name: str) -> None:
    response = live.chat(structured_outputs={"json": name})
    assert response.status_code == 400 and not live.engine.submitted


COHERE = (
    "{% for m in messages %}<|START_OF_TURN_TOKEN|>{{ m.role }}:{{ m.content }}"
    "<|END_OF_TURN_TOKEN|>{% endfor %}<|START_OF_TURN_TOKEN|>"
    "{% if add_generation_prompt %}<|START_THINKING|>{% endif %}"
    "{# replies: <|START_ACTION|>[...]<|END_ACTION|> #}"
)


def test_markers_that_are_special_tokens_are_read_and_not_shown() -> None:
    end = "<|END_OF_TURN_TOKEN|>"
    special = (*cohere.MARKERS, "<|START_OF_TURN_TOKEN|>", end)
    reply = (  # the prompt has opened the reasoning
        "Hm.<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "weather", '
        '"parameters": {"city": "<|END_ACTION|>"}}'
        "\n]<|END_ACTION|>"
    )
    tokenizer = byte_tokenizer(COHERE, special, end)
    with serving(ScriptedEngine(lambda asked: reply, tokenizer=tokenizer)) as live:
        message = live.chat(tools=TOOLS).json()["choices"][0]["message"]
        assert message["reasoning_content"] == "Hm." and message["content"] is None
        assert not live.engine.submitted[0][1].skip_special
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "<|END_ACTION|>"}
        live.engine.script = lambda asked: "Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>"
        events = live.events("/v1/chat/completions", {"messages": ASK})[:-1]
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm."
        assert "".join(d.get("content", "") for d in deltas) == "Yes."
        forced = grammar(live, tools=TOOLS, tool_choice="required")
        assert forced is not None and fits(live, forced, reply.replace("<|END_ACTION|>", "x", 1))
        assert not fits(live, forced, "Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>")
