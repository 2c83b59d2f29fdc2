"""Completions of plain prompts, of every form that a prompt may have."""

from typing import Any

import pytest

from tests.serve.live import Live


def complete(live: Live, **fields: Any) -> Any:
    return live.client().completions.create(model="scripted", **fields)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", [[64, 65]]),
        (["ab", "c"], [[64, 65], [66]]),
        ([64, 65], [[64, 65]]),
        ([[64, 65], [66]], [[64, 65], [66]]),
        ("\x00\x1b", [[188, 215]]),
    ],
)
def test_every_form_of_a_prompt(live: Live, prompt: Any, prompts: list[list[int]]) -> None:
    answer = complete(live, prompt=prompt, max_tokens=5)
    assert [c.text for c in answer.choices] == ["Hello"] * len(prompts)
    assert [c.index for c in answer.choices] == list(range(len(prompts)))
    assert all(c.finish_reason == "length" for c in answer.choices)
    assert [ids for ids, _ in live.engine.submitted] == prompts
    assert answer.usage.prompt_tokens == sum(map(len, prompts))
    assert answer.usage.completion_tokens == 5 * len(prompts)


def test_a_stream_of_several_prompts_and_choices(live: Live) -> None:
    live.engine.script = lambda asked: asked.text * (1 + asked.choice)
    body = {"prompt": ["ab", "c"], "n": 2, "stream_options": {"include_usage": True}}
    *events, usage, done = live.events("/v1/completions", body)
    texts = dict.fromkeys(range(4), "")
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "ab", 1: "abab", 2: "c", 3: "cc"} and done == "[DONE]"
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 2 + 4 + 1 + 2 + 4


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("prompt", ["ab", [64, 65]])
def test_echo(live: Live, max_tokens: int, prompt: Any) -> None:
    answer = complete(live, prompt=prompt, echo=True, logprobs=1, max_tokens=max_tokens)
    (choice,) = answer.choices
    assert choice.text == "ab" + "H" * max_tokens and choice.finish_reason == "length"
    assert choice.logprobs.tokens == ["a", "b", "H"][: 2 + max_tokens]
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5][: 2 + max_tokens]
    assert choice.logprobs.text_offset == [0, 1, 2][: 2 + max_tokens]
    assert choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.top_logprobs[1] == {"b": -0.5}
    assert answer.usage.completion_tokens == max_tokens
    body = {"prompt": prompt, "echo": True, "max_tokens": max_tokens, "logprobs": 0}
    events = live.events("/v1/completions", body)[:-1]
    assert "".join(e["choices"][0]["text"] for e in events) == choice.text
    told = [t for e in events for t in (e["choices"][0].get("logprobs") or {}).get("tokens", [])]
    assert told == choice.logprobs.tokens


def test_a_prompt_that_fills_the_context_can_be_echoed(live: Live) -> None:
    body = {"prompt": [64] * live.engine.context, "echo": True, "logprobs": 0}
    response = live.post("/v1/completions", {**body, "max_tokens": 0})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert len(choice["logprobs"]["tokens"]) == live.engine.context
    refused = live.post("/v1/completions", {**body, "max_tokens": 1})
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_without_echo_at_least_one_token(live: Live) -> None:
    response = live.post("/v1/completions", {"prompt": "a", "max_tokens": 0})
    assert response.status_code == 400 and response.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize(
    ("prompt", "word"),
    [
        ("", "empty"),
        ([], "empty"),
        ([[]], "empty"),
        ([""], "empty"),
        (None, "prompt"),
        ([1, "a"], "prompt"),
        ([259], "vocabulary"),
        ([[-1]], "prompt"),
        ([1.5], "prompt"),
        ([True], "prompt"),
        (["a"] * 129, "at most 128"),
        ({"a": 1}, "prompt"),
    ],
)
def test_prompts_that_are_none(live: Live, prompt: Any, word: str) -> None:
    response = live.post("/v1/completions", {"prompt": prompt})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert word in error["message"] and error["param"].startswith("prompt")


def test_the_context_is_filled_to_its_last_position_and_no_further(live: Live) -> None:
    context = live.engine.context
    live.engine.script = lambda asked: "x" * 9999
    fits = complete(live, prompt="a" * (context - 1))
    assert fits.choices[0].text == "x" and fits.choices[0].finish_reason == "length"
    two = complete(live, prompt="a" * (context - 2), max_tokens=context)
    assert two.choices[0].text == "xx"
    for size in (context, context + 1, 20 * context):
        for stream in (False, True):
            body = {"prompt": "a" * size, "stream": stream}
            response = live.post("/v1/completions", body)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["code"] == "context_length_exceeded" and error["param"] == "prompt"
            assert "maximum context length is 4096 tokens" in error["message"]
