"""A client that goes away ends its request, whatever state it is in; and so do two hundred."""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mkport.engine.server import answer as answer_module
from mkport.engine.server.answer import _Out
from mkport.engine.server.connection import write_now
from mkport.engine.server.lifecycle import bind
from tests.serve import live as live_module
from tests.serve.live import Live, asking, serving, until
from tests.serve.scripted import ScriptedEngine


def endless() -> Iterator[str]:
    while True:
        yield "e"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("state", ["queued", "prefilling", "decoding"])
def test_hanging_up_ends_the_request(state: str, stream: bool) -> None:
    chunk = 1 if state == "prefilling" else 1 << 20
    engine = ScriptedEngine(lambda asked: endless(), max_batch=1, step_s=0.01, chunk=chunk)
    with serving(engine) as live, contextlib.ExitStack() as others:
        if state == "queued":
            others.enter_context(asking(live.url))
            until(lambda: engine.stats().running == 1)
        with asking(live.url, stream=stream) as connection:
            if state == "queued":
                until(lambda: engine.stats().waiting == 1)
            elif state == "prefilling":
                until(lambda: engine.stats().prompt_tokens >= 3)
            else:
                until(lambda: engine.stats().generation_tokens >= 3)
                if stream:
                    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        if state == "queued":
            until(lambda: engine.stats().waiting == 0, 2)
            assert engine.stats().running == 1
            others.close()
        until(engine.idle, 2)
        until(lambda: live.service.at_work == 0, 2)
        engine.script = lambda asked: "Hello"
        assert live.chat(max_tokens=2).status_code == 200


def test_pieces_of_a_stream_go_straight_to_the_connection(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Middleware would take a tenth of what a small model's token takes."""
    written = []

    def watched(send: Any, data: bytes) -> bool:
        written.append((write_now(send, data), data))
        return written[-1][0]

    monkeypatch.setattr(answer_module, "write_now", watched)
    live.engine.script = lambda asked: "Hello"
    events = live.events("/v1/completions", {"prompt": "Hi", "max_tokens": 5})
    assert len(written) >= 3 and all(done for done, _ in written)
    told = b"".join(data for _, data in written).decode()
    assert all(json.dumps(event["id"]) in told for event in events[:1])


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_was_hung_up_on_counts_as_aborted(stream: bool) -> None:
    engine = ScriptedEngine(lambda asked: endless(), step_s=0.01)
    with serving(engine) as live:
        assert live.chat(max_tokens=2).status_code == 200
        with asking(live.url, stream=stream, n=2):
            until(lambda: engine.stats().generation_tokens >= 6)
        until(lambda: live.service.at_work == 0, 2)
        metrics = live.get("/metrics").text
    counts = dict(re.findall(r'request_success_total{finished_reason="(\w+)".*} (\S+)', metrics))
    assert counts == {"stop": "0.0", "length": "1.0", "abort": "2.0", "error": "0.0"}


def test_hanging_up_in_the_middle_of_a_body_is_nobodys_business(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 500\r\n\r\n{"prompt'
        )
        until(lambda: live.service.held)
    until(lambda: live.service.held == 0)
    assert live.chat().status_code == 200


def test_two_hundred_that_hang_up_leave_room_for_one() -> None:
    engine = ScriptedEngine(lambda asked: endless(), max_batch=8, step_s=0.002)
    with serving(engine) as live:
        with contextlib.ExitStack() as storm:
            for i in range(200):
                storm.enter_context(asking(live.url, stream=i % 2 == 0))
            until(lambda: len(engine.submitted) == 200)
            time.sleep(0.5)
            assert engine.stats().running == 8
        engine.script = lambda asked: "Hello"
        began = time.perf_counter()
        assert live.chat().json()["choices"][0]["message"]["content"] == "Hello"
        assert time.perf_counter() - began < 2
        until(engine.idle, 2)
        until(lambda: live.service.at_work == 0, 2)
        assert not live.service._streams


def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    engine = ScriptedEngine(lambda asked: iter(["e" * 4000] * 9), context=1 << 21)
    with serving(engine) as live, asking(live.url, stream=True):
        until(lambda: engine.stats().generation_tokens > 8_000)
        began = time.perf_counter()
        engine.script = lambda asked: "Hello"
        assert live.chat().status_code == 200
        assert time.perf_counter() - began < 2


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one whenever a stream waits for its client to read; little is sent ahead."""
    found: list[None] = []
    flushed = _Out.flushed

    def narrow(*address: Any) -> socket.socket:
        listener = bind(*address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return listener

    monkeypatch.setattr(live_module, "bind", narrow)

    async def watched(self: _Out) -> None:
        if not self.ready:
            found.append(None)
        await flushed(self)

    monkeypatch.setattr(_Out, "flushed", watched)
    return found


def read_all(connection: socket.socket) -> str:
    """A whole answer, up to its last chunk."""
    found = bytearray()
    while not found.endswith(b"\r\n0\r\n\r\n"):
        found += connection.recv(1 << 16)
    return found.decode()


def test_a_slow_client_gets_everything_in_order(waits: list[None]) -> None:
    engine = ScriptedEngine(lambda asked: (f"{i:05d} " for i in range(300)), context=1 << 21)
    with serving(engine) as live, asking(live.url, stream=True) as connection:
        until(lambda: waits)
        with asking(live.url, stream=True) as other:
            until(lambda: len(waits) > 1)
            assert live.get("/health").status_code == 200
            answers = [read_all(other), read_all(connection)]
    for said in answers:
        pieces = re.findall(r'"content":"([^"]*)"', said)
        assert "".join(pieces) == "".join(f"{i:05d} " for i in range(300))
        assert said.count("data: [DONE]") == 1


def test_a_client_that_hangs_up_instead_of_reading(waits: list[None]) -> None:
    engine = ScriptedEngine(lambda asked: endless(), context=1 << 21)
    with serving(engine) as live:
        with asking(live.url, stream=True):
            until(lambda: waits)
        until(engine.idle)
        until(lambda: live.service.at_work == 0)
        assert not live.service._streams


def test_a_server_that_stops_waits_for_nobody_who_does_not_read(waits: list[None]) -> None:
    engine = ScriptedEngine(lambda asked: endless(), context=1 << 21)
    with serving(engine) as live, asking(live.url, stream=True):
        until(lambda: waits)
        live.server.handle_exit(2, None)
        live.server.handle_exit(2, None)
        until(lambda: live.service.stopping)
        until(engine.idle)


def test_while_there_is_no_token_a_stream_says_that_it_is_alive() -> None:
    engine = ScriptedEngine(step_s=0.02, chunk=1)
    with serving(engine, ping_s=0.05) as live:
        response = live.chat(stream=True)
        assert response.status_code == 200 and response.text.startswith(": waiting\n\n")
        assert response.text.endswith("data: [DONE]\n\n")


def test_a_gone_client_among_several_prompts(live: Live) -> None:
    live.engine.script = lambda asked: endless()
    failed: list[Exception] = []

    def ask() -> None:
        try:
            live.client(timeout=0.3).completions.create(model="scripted", prompt=["a", "b", "c"])
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert failed
    until(live.engine.idle, 2)
