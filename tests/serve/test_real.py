"""`mkport serve` itself, in a process of its own, with the embedded model, end to end."""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import httpx
import openai
import pytest

from mkport.engine.source import DEMO_PACKAGE
from tests.serve import process
from tests.serve.live import asking, until

FRANCE: Any = [{"role": "user", "content": "What is the capital of France?"}]
pytestmark = pytest.mark.skipif(find_spec(DEMO_PACKAGE) is None, reason="no demo model")
SAYS = "The capital of France is Paris."


@dataclass
class Real:
    url: str
    model: str
    client: openai.OpenAI


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    with process.real("--max-model-len", "1024") as server:
        model = httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            yield Real(server.url, model, client)
        server.signal()
        assert server.ended(10) == 0
    assert server.lines and all(json.loads(line)["level"] == "info" for line in server.lines)


def test_it_knows_the_capital_of_france(real: Real) -> None:
    create = real.client.chat.completions.create
    whole = create(model=real.model, messages=FRANCE, temperature=0)
    assert whole.choices[0].message.content == SAYS
    assert whole.choices[0].finish_reason == "stop"
    stream = create(model=real.model, messages=FRANCE, temperature=0, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == SAYS


def test_a_seed_says_the_same_twice_and_choices_differ(real: Real) -> None:
    def story(seed: int) -> list[str | None]:
        answer = real.client.chat.completions.create(
            model=real.model,
            messages=[{"role": "user", "content": "Tell me a story."}],
            seed=seed,
            n=3,
            temperature=1,
            max_tokens=12,
        )
        return [choice.message.content for choice in answer.choices]

    first = story(1)
    assert first == story(1) and len(set(first)) == 3 and first != story(2)


def test_a_call_that_is_required_comes(real: Real) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}}
    function = {"name": "weather", "parameters": {**parameters, "required": ["city"]}}
    tools: Any = [{"type": "function", "function": function}]
    answer = real.client.chat.completions.create(
        model=real.model,
        messages=[{"role": "user", "content": "How is the weather in Rome?"}],
        tools=tools,
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_a_schema_is_kept_and_one_that_is_none_refused(real: Real) -> None:
    def ask(schema: Any) -> Any:
        form: Any = {"type": "json_schema", "json_schema": {"name": "cat", "schema": schema}}
        answer = real.client.chat.completions.create(
            model=real.model,
            messages=[{"role": "user", "content": "Describe a cat in JSON."}],
            response_format=form,
            temperature=0,
        )
        return json.loads(answer.choices[0].message.content or "")

    ages = {"age": {"type": "integer", "minimum": 0, "maximum": 30}}
    schema = {"type": "object", "properties": ages, "required": ["age"]}
    cat = ask({**schema, "additionalProperties": False})
    assert set(cat) == {"age"} and 0 <= cat["age"] <= 30
    with pytest.raises(openai.BadRequestError) as caught:
        ask({"type": "nonsense"})
    assert caught.value.param == "response_format" and "nonsense" in str(caught.value)


def test_a_grammar_that_cannot_be_followed_is_the_client_s_mistake(real: Real) -> None:
    """Not 500, which clients send again and again; in a stream that has begun, the last event."""
    ask = partial(httpx.post, f"{real.url}/v1/chat/completions", timeout=60)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "aaaa"}], "max_tokens": 400}
    body |= {"min_tokens": 400, "temperature": 0}  # it cannot end before
    for form in (
        {"grammar": 'start: s\ns: s s | "a" | "b" | " "'},
        {"regex": "(((a{1,99}){1,99}){1,99}){1,99}"},
    ):
        body["structured_outputs"] = form
        answer = ask(json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] == "cannot_go_on"
        streamed = ask(json=body | {"stream": True})
        *_, last = streamed.text.strip().split("data: ")
        assert json.loads(last)["error"]["code"] == "cannot_go_on"


def test_a_second_turn_reads_only_what_is_new(real: Real) -> None:
    rules = "You answer in one short sentence. " * 20
    messages: list[Any] = [{"role": "system", "content": rules}, *FRANCE]
    create = real.client.chat.completions.create
    first = create(model=real.model, messages=messages, temperature=0)
    messages.append({"role": "assistant", "content": first.choices[0].message.content})
    messages.append({"role": "user", "content": "And of Italy?"})
    second = create(model=real.model, messages=messages, temperature=0, max_tokens=5)
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= second.usage.prompt_tokens - 128 > 0  # whole pages of 64


def test_log_probabilities_of_a_prompt(real: Real) -> None:
    answer = real.client.completions.create(
        model=real.model,
        prompt="The capital of France is Paris",
        echo=True,
        logprobs=1,
        max_tokens=0,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None
    assert logprobs.tokens[-1] == " Paris" and logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None and -2 < (logprobs.token_logprobs[-1] or 0) < 0
    assert answer.choices[0].text == "The capital of France is Paris"


def test_two_hundred_that_hang_up_leave_room_for_one(real: Real) -> None:
    with contextlib.ExitStack() as storm:
        for i in range(200):
            story = [{"role": "user", "content": f"Tell me story {i}, a long one."}]
            storm.enter_context(asking(real.url, messages=story, stream=i % 2 == 0))
        time.sleep(0.5)
    began = time.monotonic()
    create = real.client.chat.completions.create
    answer = create(model=real.model, messages=FRANCE, temperature=0)
    assert answer.choices[0].message.content == SAYS and time.monotonic() - began < 10
    until(lambda: httpx.get(f"{real.url}/stats").json()["kv_usage"] == 0)
    stats = httpx.get(f"{real.url}/stats").json()
    assert stats["running"] == stats["waiting"] == 0


def test_the_metrics_have_counted_it(real: Real) -> None:
    text = httpx.get(f"{real.url}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    def value(name: str, more: str = "") -> float:
        return float(values[f'mkport:{name}{{{more}model_name="{real.model}"}}'])

    assert value("num_requests_running") == value("num_requests_waiting") == 0
    assert value("generation_tokens_total") > 20 and value("prompt_tokens_total") > 100
    assert value("prefix_cache_hits_total") >= 128 and value("kv_cache_usage_perc") == 0
    assert value("num_preemptions_total") == 0
    assert value("request_success_total", 'finished_reason="stop",') >= 4
    for name in (
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "iteration_tokens_total",
    ):
        assert value(f"{name}_count") > 0 and value(f"{name}_sum") > 0


def test_the_page_and_its_numbers_are_there(real: Real) -> None:
    assert "<title>mkport</title>" in httpx.get(real.url).text
    assert httpx.get(f"{real.url}/stats").json()["model"] == real.model
