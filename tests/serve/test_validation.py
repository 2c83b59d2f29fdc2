"""What is refused, and how: 400 with the field's name, in the one form that errors have."""

from typing import Any

import openai
import pytest

from tests.serve.live import Live

BAD: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "0.5"),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("n", 0),
    ("n", 17),
    ("n", True),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 4097),
    ("max_tokens", 10**400),
    ("max_completion_tokens", 0),
    ("max_completion_tokens", 4097),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", ["a"] * 17),
    ("stop", 3),
    ("stop", ["a" * 1001]),
    ("seed", 2**63),
    ("seed", -(2**63) - 1),
    ("seed", 0.5),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("repetition_penalty", 0),
    ("repetition_penalty", 1e-300),  # zero in single precision
    ("logit_bias", {"259": 1}),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {str(i): 1 for i in range(1025)}),
    ("logit_bias", [1]),
    ("min_tokens", -1),
    ("min_tokens", 5000),
    ("stop_token_ids", [259]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", "a"),
    ("top_logprobs", 21),
    ("top_logprobs", 3),  # without logprobs
    ("logprobs", 1),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),  # without stream
    ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}),
    ("response_format", "json"),
    ("structured_outputs", {}),
    ("structured_outputs", {"regex": "a", "choice": ["b"]}),
    ("tools", {}),
    ("tools", [{}]),
    ("tools", [{"type": "function", "function": {"name": ""}}]),
    ("tools", [{"type": "function", "function": {"name": "a b"}}]),
    ("tools", [{"type": "function", "function": {"name": "a", "parameters": 3}}]),
    ("tools", [{"type": "web_search"}]),
    ("tool_choice", "required"),  # without tools
    ("tool_choice", "sometimes"),
    ("tool_choice", {"type": "function", "function": {"name": "absent"}}),
    ("tool_choice", {"type": "function"}),
    ("chat_template", "{{ 1 }}"),
    ("chat_template_kwargs", {"messages": []}),
    ("best_of", 2),
    ("suffix", "x"),
    ("use_beam_search", True),
    ("functions", [{"name": "f"}]),
    ("function_call", "auto"),
    ("guided_json", {}),
    ("bad_words", ["x"]),
    ("allowed_token_ids", [1]),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "x"}),
    ("store", True),
    ("service_tier", "flex"),
    ("truncate_prompt_tokens", 5),
    ("cache_salt", "x"),
    ("include_stop_str_in_output", True),
    ("prompt_logprobs", 1),
    ("echo", True),
    ("grammar", 'root ::= "yes"'),
    ("json_schema", {"type": "object"}),
    ("regex", "[ab]"),
    ("ebnf", 'root ::= "yes"'),
    ("n_predict", 5),
    ("typical_p", 0.5),
    ("mirostat", 2),
    ("xtc_probability", 0.5),
    ("dry_multiplier", 0.8),
    ("continue_final_message", 1),
    ("reasoning_effort", 3),
]


def ids(case: Any) -> str:
    return str(case)[:40]


@pytest.mark.parametrize(("field", "value"), BAD, ids=ids)
def test_a_wrong_value_is_refused_by_name(live: Live, field: str, value: Any) -> None:
    for stream in (False, True) if field != "stream_options" else (False,):
        response = live.chat(**{"stream": stream, field: value})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error" and set(error) == {
            "message",
            "type",
            "param",
            "code",
        }
        assert field in error["message"] and len(error["message"]) < 500
    assert not live.engine.submitted


@pytest.mark.parametrize(
    "field",
    "temperature top_p top_k min_p n max_tokens max_completion_tokens stop seed logit_bias "
    "presence_penalty frequency_penalty repetition_penalty min_tokens ignore_eos stop_token_ids "
    "logprobs top_logprobs stream stream_options response_format structured_outputs tools "
    "tool_choice parallel_tool_calls best_of chat_template suffix model user echo grammar "
    "json_schema regex ebnf n_predict typical_p mirostat xtc_probability dry_multiplier".split(),
)
def test_null_is_as_good_as_absent(live: Live, field: str) -> None:
    fields: dict[str, Any] = {field: None}
    assert live.chat(**fields).status_code == 200


GOOD = [
    ("stop", []),
    ("stop", ["a"] * 16),
    ("tools", []),
    ("tool_choice", "auto"),
    ("tool_choice", "none"),
    ("best_of", 1),
    ("modalities", ["text"]),
    ("service_tier", "auto"),
    ("top_logprobs", 0),
    ("response_format", {"type": "text"}),
    ("max_tokens", 4096),
    ("seed", 2**63 - 1),
    ("n", 16),
    ("store", False),
]


@pytest.mark.parametrize(("field", "value"), GOOD, ids=ids)
def test_neutral_and_extreme_values_are_taken(live: Live, field: str, value: Any) -> None:
    assert live.chat(**{field: value}).status_code == 200


MESSAGES: list[tuple[Any, str]] = [
    ([], "messages"),
    (None, "messages"),
    ("Hi", "messages"),
    ([3], "messages[0]"),
    ([{}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": 3}], "messages[0].content"),
    ([{"role": 3, "content": "x"}], "messages[0].role"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages[0].content[0]",
    ),
    ([{"role": "assistant", "tool_calls": 3}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
    ([{"role": "assistant", "reasoning_content": 3}], "messages[0].reasoning_content"),
]


@pytest.mark.parametrize(("messages", "place"), MESSAGES, ids=ids)
def test_messages_that_are_none(live: Live, messages: Any, place: str) -> None:
    response = live.post("/v1/chat/completions", {"messages": messages})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == place


def test_an_image_is_refused_in_words(live: Live) -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    body = {"messages": [{"role": "user", "content": content}]}
    assert "no images" in live.post("/v1/chat/completions", body).json()["error"]["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(live: Live, number: str) -> None:
    body = '{"messages": [{"role": "user", "content": "x"}], "temperature": NUMBER}'
    headers = {"Content-Type": "application/json"}
    response = live.post(
        "/v1/chat/completions", headers=headers, content=body.replace("NUMBER", number)
    )
    assert response.status_code == 400 and "error" in response.json()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 100_000, b"{}"]
    + [b'{"messages":' + b'[{"a":' * 500],
)
def test_bodies_that_are_none(live: Live, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = live.post("/v1/chat/completions", headers=headers, content=body)
    assert response.status_code == 400 and response.json()["error"]["message"]


def test_a_lone_surrogate_is_refused(live: Live) -> None:
    headers = {"Content-Type": "application/json"}
    body = b'{"messages": [{"role": "user", "content": "\\ud83d"}]}'
    response = live.post("/v1/chat/completions", headers=headers, content=body)
    assert response.status_code == 400


def test_only_json_is_read(live: Live) -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}]}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = live.post("/v1/chat/completions", headers={"Content-Type": kind}, content=body)
        assert response.status_code == 415 and "error" in response.json()
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert live.post("/v1/chat/completions", headers=headers, content=body).status_code == 200


def test_the_model_must_be_there(live: Live) -> None:
    client = live.client()
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")
    assert client.models.retrieve("scripted").id == "scripted"
    for name in ("", None):  # whichever is there
        assert live.chat(model=name).status_code == 200
    assert [model.id for model in client.models.list()] == ["scripted"]


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/metrics", "/nothing"])
def test_the_head_of_what_can_be_got(live: Live, path: str) -> None:
    """As proxies and watchers ask; what follows on the connection is read as ever."""
    head, whole = live.http.head(live.url + path), live.get(path)
    assert head.status_code == whole.status_code and head.content == b""
    assert head.headers.get("content-type") == whole.headers.get("content-type")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/v1/chat/completions", 405),
        ("GET", "/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/health", 405),
        ("POST", "/v1/chat/completions/", 404),
    ],
)
def test_what_is_not_there(live: Live, method: str, path: str, status: int) -> None:
    response = live.http.request(method, live.url + path)
    assert response.status_code == status
    assert status != 405 or "allow" in response.headers
    if method != "HEAD":
        error = response.json()["error"]
        assert isinstance(error["message"], str) and error["code"] is None


def test_history_may_hold_anything_that_a_model_said(live: Live) -> None:
    calls = [
        {"id": "1", "type": "function", "function": {"name": "gone", "arguments": "{not json"}},
        {"id": "2", "type": "function", "function": {"name": "invalid", "arguments": ""}},
        {"id": "3", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}},
    ]
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": calls, "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "1", "content": "no such tool"},
        {"role": "assistant", "content": "so"},
    ]
    response = live.post("/v1/chat/completions", {"messages": messages})
    assert response.status_code == 200, response.text
    shown = live.engine.tokenizer.decode(live.engine.submitted[0][0], skip_special=False)
    assert '"arguments": "{not json"' in shown and '"arguments": {"a": [1]}' in shown
