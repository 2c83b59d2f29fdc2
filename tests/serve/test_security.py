"""The key, and the limits that keep one client from taking the server from the others."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.live import Live, serving, until
from tests.serve.scripted import ScriptedEngine, Wait

KEY = "sésame, ouvre-toi"
HELLO: Any = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def locked() -> Iterator[Live]:
    with serving(ScriptedEngine(), api_key=KEY) as live:
        yield live


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"Authorization": b"Bearer " + key.encode()}


@pytest.mark.parametrize("key", ["x", KEY[:-1], KEY + "x", KEY.upper(), "Bearer"])
def test_a_wrong_key_opens_nothing(locked: Live, key: str) -> None:
    for method, path in [
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/tokenize"),
        ("POST", "/reset_prefix_cache"),
        ("GET", "/tokenizer_info"),
        ("GET", "/version"),
        ("GET", "/stats"),
        ("GET", "/openapi.json"),
        ("GET", "/nothing"),
        ("GET", "/v1/../v1/models"),
        ("GET", "//v1/models"),
    ]:
        for headers in (bearer(key), dict[bytes, bytes]()):
            response = locked.http.request(method, locked.url + path, headers=headers)
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert "www-authenticate" in response.headers
    assert not locked.engine.resets


def test_the_key_opens_and_some_doors_need_none(locked: Live) -> None:
    right = bearer(KEY)
    assert locked.post("/v1/chat/completions", HELLO, headers=right).status_code == 200
    small = {"authorization": b"bearer " + KEY.encode()}
    assert locked.get("/v1/models", headers=small).status_code == 200
    for path in ("/health", "/ready", "/metrics", "/"):
        assert locked.get(path).status_code == 200
    for path in ("/health", "/ready"):
        asked = locked.http.head(f"{locked.url}{path}")
        assert asked.status_code == 200 and not asked.content
    assert locked.get("/openapi.json", headers=right).json()["security"]


def raw(live: Live, data: bytes, seconds: float = 5.0) -> bytes:
    """What the server answers to these bytes, until it closes or says no more."""
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), seconds) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
                if b"\r\n\r\n" in answer:
                    return answer
        except TimeoutError:
            pass
        return answer


def refused(answer: bytes) -> tuple[int, str]:
    """The status of an error in the server's form, and what it says."""
    head, _, body = answer.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and b"connection: close" in head
    return int(head.split()[1]), error["message"]


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00", b"FOO / HTTP/1.1\r\nHost: x\r\n\r\n"]
    + [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"],
)
def test_what_is_no_http_is_answered_in_the_same_form(live: Live, data: bytes) -> None:
    assert refused(raw(live, data)) == (400, "Invalid HTTP request received.")


@pytest.mark.parametrize("line", [b"x-%d: " + b"a" * 1000 + b"\r\n", b"%d" + b"a" * 1000])
@pytest.mark.parametrize("before", [b"", b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_headers_without_an_end_are_cut(live: Live, line: bytes, before: bytes) -> None:
    """Many, or a long one; on a new connection, or behind another request."""
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        if before:
            connection.sendall(before)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nx: ")
        sent = 0
        answer = b""
        try:
            while sent < 20_000 and not answer:
                connection.sendall(line % sent)
                sent += 1
                connection.setblocking(False)
                try:
                    answer = connection.recv(65536)
                except BlockingIOError:
                    answer = b""
                connection.settimeout(5)
        except OSError:  # cut off
            answer = answer or b"cut"
    assert answer == b"cut" or refused(answer)[0] == 431
    assert sent < 19_000
    assert live.get("/health").status_code == 200


def test_large_headers_that_end_are_read(live: Live) -> None:
    for size in (100, 60_000):
        assert live.get("/version", headers={"x": "a" * size}).status_code == 200


@pytest.mark.parametrize("begun", [b"", b"GET /version HTTP/1.1\r\nHost: x\r\n"])
def test_who_asks_for_nothing_is_cut_off(begun: bytes) -> None:
    with serving(ScriptedEngine(lambda asked: [Wait(0.6), "x"]), head_s=0.2) as live:
        began = time.perf_counter()
        assert refused(raw(live, begun))[0] == 408
        assert 0.15 < time.perf_counter() - began < 3
        # an answer may take longer, and a connection may be kept after it
        assert live.chat().status_code == 200
        time.sleep(0.4)
        assert live.chat().status_code == 200
        assert not live.server.server_state.connections or live.service.at_work == 0


def test_a_body_that_is_too_large_is_refused_before_it_is_read(live: Live) -> None:
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000000000\r\n\r\n"
    )
    began = time.perf_counter()
    answer = raw(live, head)
    assert answer.startswith(b"HTTP/1.1 413") and time.perf_counter() - began < 1
    assert live.service.held == 0


def test_a_body_in_chunks_is_counted(live: Live) -> None:
    def chunks() -> Iterator[bytes]:
        yield b'{"messages": "'
        for _ in range(200):
            yield b"x" * 65536

    headers = {"Content-Type": "application/json"}
    response = live.http.post(live.url + "/v1/chat/completions", headers=headers, content=chunks())
    assert response.status_code == 413 and "error" in response.json()
    assert live.service.held == 0


def test_a_slow_body_is_given_up() -> None:
    with serving(ScriptedEngine(), body_s=0.2) as live:
        head = (
            b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 50\r\n\r\n{"prompt":'
        )
        assert raw(live, head).startswith(b"HTTP/1.1 408")
        assert live.service.held == 0


def test_the_memory_for_bodies_is_shared(live: Live) -> None:
    with serving(ScriptedEngine(), max_held=100_000, body_s=5) as small:
        host, port = small.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 5) as slow:
            slow.sendall(
                b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 90000\r\n\r\n" + b" " * 80_000
            )
            until(lambda: small.service.held == 80_000)
            response = small.post("/tokenize", {"prompt": "x" * 50_000})
            assert response.status_code == 503 and "retry-after" in response.headers
            assert small.post("/tokenize", {"prompt": "x"}).status_code == 200
        until(lambda: small.service.held == 0)


def test_a_full_queue_and_a_full_house_say_when_to_come_back() -> None:
    engine = ScriptedEngine(lambda asked: [Wait(0.5), "x"], max_batch=1, max_waiting=1)
    with serving(engine, max_requests=3) as live:
        answers: list[int] = []
        threads = []
        for _ in range(2):
            threads.append(threading.Thread(target=lambda: answers.append(live.chat().status_code)))
            threads[-1].start()
            until(lambda: len(engine.submitted) == len(threads))
            time.sleep(0.02)  # the first must run before the second waits
        for stream in (False, True):
            response = live.chat(stream=stream)
            assert response.status_code == 503 and response.headers["retry-after"] == "2"
            assert response.json()["error"]["code"] == "queue_full"
        for thread in threads:
            thread.join()
        assert answers == [200, 200] and engine.idle()
        engine.max_waiting = 100
        threads = [threading.Thread(target=live.chat) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: live.service.at_work == 3)
        response = live.chat()
        assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["code"] == "too_many_requests"
        assert live.get("/health").status_code == 200
        for thread in threads:
            thread.join()
        until(lambda: live.service.at_work == 0)


def test_the_prompts_of_one_call_are_taken_all_or_none() -> None:
    engine = ScriptedEngine(lambda asked: [Wait(1), "x"], max_batch=1, max_waiting=1)
    with serving(engine) as live:
        first = threading.Thread(target=live.chat)
        first.start()
        until(lambda: engine.stats().running == 1)
        assert live.post("/v1/completions", {"prompt": ["a", "b", "c"]}).status_code == 503
        assert len(engine.submitted) == 2  # one was taken, and must be let go
        until(lambda: engine.stats().waiting == 0, 0.5)
        assert engine.stats().running == 1
        first.join()


def test_a_dead_engine_is_told(live: Live) -> None:
    with serving(ScriptedEngine()) as dead:
        dead.engine.dead = True
        for path in ("/health", "/ready"):
            response = dead.get(path)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_dead"
        assert dead.chat().status_code == 503


def test_a_prompt_is_measured_before_it_is_tokenized(live: Live, monkeypatch: Any) -> None:
    asked: list[str] = []

    def encode(text: str, add_special: bool = True) -> list[int]:
        asked.append(text)
        return [1]

    def render(*messages: Any, **variables: Any) -> str:
        asked.append("rendered")
        return "short"

    monkeypatch.setattr(live.engine.tokenizer, "encode", encode)
    monkeypatch.setattr(live.engine.tokenizer, "render_chat", render)
    text = "a" * (live.service.most_characters + 1)
    for path, body in [
        ("/v1/completions", {"prompt": text}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ("/tokenize", {"prompt": text}),
    ]:
        response = live.post(path, body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
    assert not asked


def test_a_template_cannot_reach_out(live: Live) -> None:
    hostile = "{{ ''.__class__.__mro__ }}{{ cycler.__init__.__globals__ }}{% for i in x %}"
    for kwargs in ({"x": hostile}, {"bos_token": hostile}):
        body = {**HELLO, "chat_template_kwargs": kwargs}
        assert live.post("/v1/chat/completions", body).status_code == 200
    body = {"messages": [{"role": hostile, "content": hostile}]}
    assert live.post("/v1/chat/completions", body).status_code == 200
    shown = live.engine.tokenizer.decode(live.engine.submitted[-1][0], skip_special=False)
    assert hostile in shown  # text, never code


def test_nothing_outside_the_page_is_served(live: Live) -> None:
    for path in ("/../app.py", "/page/../app.py", "/%2e%2e/app.py", "/page.html", "/__init__.py"):
        assert raw(live, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()).startswith(
            b"HTTP/1.1 404"
        )
