"""Tools reach a model whose chat template knows none, and what it answered is read and replayed."""

import json
from typing import Any

import pytest

from mkport.engine import template
from mkport.engine.parsers import choose, joined
from mkport.engine.tokenizer import Tokenizer

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "é", "description": "x"}},
]
ASK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Łódź?"},
]


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_template_without_tools_gets_them_in_the_system_message(
    demo_tokenizer: Tokenizer,
) -> None:
    text = demo_tokenizer.render_chat(ASK, TOOLS)
    system, user = text.split("<|im_end|>\n")[:2]
    assert system.startswith("<|im_start|>system\nBe brief.\n\n")
    for tool in TOOLS:
        assert f"\n{json.dumps(tool['function'], ensure_ascii=False)}\n" in system
    assert user == "<|im_start|>user\nWeather in Łódź?"
    alone = demo_tokenizer.render_chat(ASK[1:], TOOLS)
    assert alone.startswith("<|im_start|>system\nYou may call functions")
    assert alone.count("<|im_start|>system") == 1


def test_without_tools_the_conversation_is_left_alone(demo_tokenizer: Tokenizer) -> None:
    text = demo_tokenizer.render_chat(ASK)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather in Łódź?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "reply",
    [
        '<tool_call>\n{"name": "weather", "arguments": {"at": "Łódź", "n": ["}"]}}\n</tool_call>',
        'I look.\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "é", "arguments": {"a": 1.5}}\n</tool_call>',
        "It rains.",
        # cut short or not JSON: it comes back as it was
        '<tool_call>\n{"name": "weather", "arguments": {"city": [}}\n</tool_call>',
    ],
)
def test_a_reply_that_was_read_is_replayed_as_it_was_written(
    demo_tokenizer: Tokenizer, reply: str
) -> None:
    prompt = demo_tokenizer.render_chat(ASK, TOOLS)
    form = choose(demo_tokenizer.chat_template)
    parser = form.parser(names=["weather", "é"])
    read = joined([*parser.push(reply), *parser.finish()])
    calls = []
    for made in read.calls:
        try:
            arguments: Any = json.loads(made.arguments)
        except ValueError:
            arguments = made.arguments.removesuffix("}\n")  # what closed the broken call
        calls.append(call(made.name, arguments))
    said = {"role": "assistant", "content": read.content or None, "tool_calls": calls}
    results = [{"role": "tool", "content": f"r{i}", "tool_call_id": "x"} for i in range(len(calls))]
    text = demo_tokenizer.render_chat([*ASK, said, *results], TOOLS)
    assert text.startswith(prompt + reply + "<|im_end|>\n")
    answers = "\n".join(f"<tool_response>\nr{i}\n</tool_response>" for i in range(len(calls)))
    rest = f"<|im_start|>user\n{answers}<|im_end|>\n" if calls else ""
    assert text == prompt + reply + "<|im_end|>\n" + rest + "<|im_start|>assistant\n"


def test_calls_in_the_history_need_no_tools_in_the_request(demo_tokenizer: Tokenizer) -> None:
    history = [
        *ASK,
        {"role": "assistant", "content": "", "tool_calls": [call("gone", "not json")]},
        {"role": "tool", "content": None},
        {"role": "assistant", "content": "Hm."},
    ]
    text = demo_tokenizer.render_chat(history, add_generation_prompt=False)
    assert '"name": "gone", "arguments": not json}' in text and "<tools>" not in text
    assert text.endswith("<|im_start|>assistant\nHm.<|im_end|>\n")


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("{{ messages }}", False),
        ("{% if tools is not none %}x{% endif %}", True),
        ("{% set tools = [] %}{{ tools }}", False),
        ("{% generation %}{{ tools }}{% endgeneration %}", True),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", True),
        ("{% macro f() %}{{ tools }}{% endmacro %}{{ f() }}", True),
        ("{% if %}", True),
    ],
)
def test_whether_a_template_reads_a_variable(source: str, uses: bool) -> None:
    assert template.reads(source, "tools") is uses


def test_a_template_that_takes_tools_is_given_them(
    demo_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "{{ tools | length }}{% for m in messages %}{{ m.tool_calls | length }}{% endfor %}"
    monkeypatch.setattr(demo_tokenizer, "_templates", {"default": source})
    message = {"role": "assistant", "tool_calls": [call("f", {})]}
    assert demo_tokenizer.render_chat([message], TOOLS) == "21"
