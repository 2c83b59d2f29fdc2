"""Chat completions as the `openai` client sees them, streamed and whole."""

import json
from typing import Any

import openai
import pytest

from mkport.engine.server.conversation import messages
from tests.serve.live import Live, until
from tests.serve.scripted import Asked, Fail

HI: Any = [{"role": "user", "content": "Hi"}]


def test_a_whole_answer(live: Live) -> None:
    answer = live.client().chat.completions.create(model="scripted", messages=HI)
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == "Hello, world!"
    assert choice.finish_reason == "stop" and choice.logprobs is None
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage is not None and answer.usage.completion_tokens == 14  # with its end
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 14
    prompt, sampling = live.engine.submitted[0]
    assert answer.usage.prompt_tokens == len(prompt)
    shown = live.engine.tokenizer.decode(prompt, skip_special=False)
    assert shown == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert sampling.max_tokens == live.engine.context - len(prompt)
    assert sampling.temperature == 1.0 and sampling.top_p == 1.0 and sampling.top_k == 0


def test_a_stream_has_a_role_then_what_changes_then_a_reason(live: Live) -> None:
    events = live.events("/v1/chat/completions", {"messages": HI})
    assert events.pop() == "[DONE]"
    choices = [event["choices"][0] for event in events]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all(set(c["delta"]) == {"content"} for c in choices[1:-1]) and len(choices) > 10
    assert "".join(c["delta"]["content"] for c in choices[1:-1]) == "Hello, world!"
    assert choices[-1]["delta"] == {}
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert not any("usage" in event for event in events)


def test_the_client_reads_a_stream(live: Live) -> None:
    stream = live.client().chat.completions.create(
        model="scripted", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello, world!"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 14
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_usage_can_be_told_all_the_time(live: Live) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = live.events("/v1/chat/completions", {"messages": HI, "stream_options": options})[:-1]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[0] <= 1 and counts[-1] == 14
    assert events[-1]["choices"] == []


def test_choices_are_told_apart(live: Live) -> None:
    live.engine.script = lambda asked: "ab" * (1 + asked.choice)
    answer = live.client().chat.completions.create(model="scripted", messages=HI, n=3)
    assert [c.message.content for c in answer.choices] == ["ab", "abab", "ababab"]
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len(live.engine.submitted) == 1  # one prompt
    texts = {0: "", 1: "", 2: ""}
    reasons: dict[int, str] = {}
    for event in live.events("/v1/chat/completions", {"messages": HI, "n": 3})[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
    assert texts == {0: "ab", 1: "abab", 2: "ababab"} and set(reasons.values()) == {"stop"}


def test_log_probabilities(live: Live) -> None:
    live.engine.script = lambda asked: "é!"
    create = live.client().chat.completions.create
    answer = create(model="scripted", messages=HI, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    first, second = logprobs.content[:2]
    # one character of two tokens: neither is text, together their bytes are
    assert bytes([*(first.bytes or ()), *(second.bytes or ())]).decode() == "é"
    assert len(first.top_logprobs) == 2 and first.logprob == -0.5
    assert create(model="scripted", messages=HI, logprobs=True).choices[0].logprobs is not None
    events = live.events("/v1/chat/completions", {"messages": HI, "logprobs": True})[:-1]
    told = [e["choices"][0]["logprobs"]["content"] for e in events[1:-1] if e["choices"]]
    assert [one["bytes"] for part in told for one in part][:3] == [[0xC3], [0xA9], [0x21]]


def test_a_limit_ends_with_length_and_stop_ends_with_stop(live: Live) -> None:
    create = live.client().chat.completions.create
    assert create(model="scripted", messages=HI, max_tokens=3).choices[0].finish_reason == "length"
    both = create(model="scripted", messages=HI, max_tokens=9, max_completion_tokens=2)
    assert both.choices[0].message.content == "He"
    stopped = create(model="scripted", messages=HI, stop=["lo, w", "zzz"])
    assert stopped.choices[0].message.content == "Hel"
    assert stopped.choices[0].finish_reason == "stop"
    streamed = live.events("/v1/chat/completions", {"messages": HI, "stop": "world"})
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in streamed[:-1])
    assert text == "Hello, " and streamed[-1] == "[DONE]"


def test_a_failure_before_the_first_token_has_a_status(live: Live) -> None:
    live.engine.script = lambda asked: [Fail("NaN in its row")]
    for stream in (False, True):
        response = live.chat(stream=stream)
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "NaN in its row"
    with pytest.raises(openai.InternalServerError):
        live.client().chat.completions.create(model="scripted", messages=HI)


def test_a_failure_in_a_stream_is_its_last_event_and_nobody_elses(live: Live) -> None:
    def script(asked: Asked) -> Any:
        return ["ab", Fail("NaN in its row")] if "fail" in asked.text else "c" * 50

    live.engine.script = script
    bad = live.client().chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "fail"}], stream=True
    )
    good = live.client().chat.completions.create(model="scripted", messages=HI, stream=True)
    with pytest.raises(openai.APIError, match="NaN in its row"):
        list(bad)
    assert sum(len(c.choices[0].delta.content or "") for c in good) == 50
    body = {"messages": [{"role": "user", "content": "fail"}]}
    events = live.events("/v1/chat/completions", body)
    assert events[-1]["error"]["code"] == "generation_failed" and "[DONE]" not in events


def test_a_failed_script_does_not_hang(live: Live) -> None:
    live.engine.script = lambda asked: 1 / 0
    response = live.chat()
    assert response.status_code == 500 and response.json()["error"]["type"] == "server_error"
    assert "division" not in response.text
    until(live.engine.idle)


def test_sampling_arrives(live: Live) -> None:
    live.chat(
        temperature=0,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        seed=-(2**63),
        presence_penalty=-1,
        frequency_penalty=1.5,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "7": 1.5},
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[3],
        max_tokens=16.0,
        skip_special_tokens=False,
    )
    sampling = live.engine.submitted[0][1]
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        0,
        0.5,
        7,
        0.1,
    )
    assert sampling.seed == -(2**63) and sampling.logit_bias == {5: -100, 7: 1.5}
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (-1, 1.5)
    assert sampling.repetition_penalty == 1.1 and sampling.max_tokens == 16
    assert sampling.min_tokens == 2 and sampling.ignore_eos and sampling.stop_token_ids == (3,)
    assert not sampling.skip_special


@pytest.mark.parametrize("top_k", [-1, 0, 10**6])
def test_top_k_of_all_is_no_top_k(live: Live, top_k: int) -> None:
    assert live.chat(top_k=top_k).status_code == 200
    assert live.engine.submitted[0][1].top_k == 0


def test_content_in_parts_and_null(live: Live) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    history = [
        {"role": "system", "content": parts},
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "reasoning_content": "hm"},
        {"role": "critic", "content": "odd roles are the template's business"},
        {"role": "assistant", "content": "last"},
    ]
    assert live.post("/v1/chat/completions", {"messages": history}).status_code == 200
    shown = live.engine.tokenizer.decode(live.engine.submitted[0][0], skip_special=False)
    assert "<|im_start|>system\none\ntwo<|im_end|>" in shown
    assert "<|im_start|>critic\nodd roles" in shown and shown.endswith("assistant\n")


def test_what_an_assistant_thought_and_refused_may_be_in_parts(live: Live) -> None:
    """As clients replay it; nobody else has such parts."""
    thought, refused = {"type": "thinking", "thinking": "hm"}, {"type": "refusal", "refusal": "No."}
    history = [
        *HI,
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Well:"}, refused]},
        *HI,
    ]
    kept = messages(history)[1]
    assert (kept["content"], kept["reasoning_content"]) == ("Well:\nNo.", "hm")
    assert live.post("/v1/chat/completions", {"messages": history}).status_code == 200
    for part in (thought, refused):
        answer = live.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}
        )
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages[0].content[0]"


def test_the_last_message_can_be_gone_on_with(live: Live) -> None:
    history = [*HI, {"role": "assistant", "content": "It is "}]
    body = {"messages": history, "continue_final_message": True, "add_generation_prompt": False}
    assert live.post("/v1/chat/completions", body).status_code == 200
    shown = live.engine.tokenizer.decode(live.engine.submitted[0][0], skip_special=False)
    assert shown.endswith("<|im_start|>assistant\nIt is")


def test_control_characters_and_every_plane_of_unicode_pass(live: Live) -> None:
    text = '\x00\x01\x1b[31m\u2028\u2029\ud7ff\ue000\U0001f600\U0010ffff\\"</script>'
    live.engine.script = lambda asked: text
    answer = live.client().chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": text}]
    )
    assert answer.choices[0].message.content == text
    events = live.events("/v1/chat/completions", {"messages": HI})[:-1]
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == text


def test_bytes_that_are_no_character_show_as_one_that_says_so(live: Live) -> None:
    bad = [live.engine.tokenizer.encode(text)[0] for text in ("é", "é", "a")]  # C3 C3 61
    live.engine.script = lambda asked: bad
    assert live.chat().json()["choices"][0]["message"]["content"] == "\ufffd\ufffda"
    events = live.events("/v1/chat/completions", {"messages": HI})[:-1]
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
    assert text == "\ufffd\ufffda"


def test_what_only_looked_like_a_stop_string_comes_in_the_end(live: Live) -> None:
    live.engine.script = lambda asked: "one, tw"
    for fields in ({"stop": ["two"]}, {"stop": ["two"], "max_tokens": 7}):
        events = live.events("/v1/chat/completions", {"messages": HI, **fields})[:-1]
        text = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
        assert text == "one, tw"


def test_an_unknown_field_is_accepted_and_told_once(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert live.chat(frobnicate=1, user="somebody", metadata={"a": "b"}).status_code == 200
    told = [r for r in caplog.records if r.message == "unknown field"]
    assert [r.__dict__["fields"] for r in told] == [{"field": "frobnicate"}]


def test_a_log_line_a_request(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mkport.server")
    response = live.post(
        "/v1/chat/completions",
        {"messages": HI, "stream": True},
        headers={"X-Request-Id": "mine"},
    )
    id = response.headers["x-request-id"]
    assert id in response.text and "mine" not in response.text
    until(lambda: any(r.message == "request" for r in caplog.records))
    (line,) = [r.__dict__["fields"] for r in caplog.records if r.message == "request"]
    assert line["id"] == id and line["client_id"] == "mine" and line["status"] == 200
    assert line["completion_tokens"] == 14 and line["finish"] == ["stop"] and line["stream"]
    assert json.dumps(line)


def test_the_same_client_id_twice_is_two_requests(live: Live) -> None:
    headers = {"X-Request-Id": "same"}
    ids = {live.post("/v1/chat/completions", {"messages": HI}, headers=headers).json()["id"]}
    ids |= {live.post("/v1/chat/completions", {"messages": HI}, headers=headers).json()["id"]}
    assert len(ids) == 2
