"""Starting, draining on a signal, stopping on the second; with requests at work."""

import gc
import signal
import sys
import threading
import time
from typing import Any

import httpx
import pytest

from mkport.engine.server import lifecycle
from mkport.engine.server.lifecycle import bind
from mkport.engine.server.settings import Settings
from mkport.errors import UserError
from tests.serve.live import events_of, until
from tests.serve.process import Started, started
from tests.serve.scripted import ScriptedEngine


class Asking(threading.Thread):
    """A request in a thread of its own."""

    def __init__(self, server: Started, text: str, stream: bool) -> None:
        super().__init__(daemon=True)
        self._server, self._text, self._stream = server, text, stream
        self.response: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        messages = [{"role": "user", "content": self._text}]
        body: dict[str, Any] = {"messages": messages, "stream": self._stream}
        self.response = httpx.post(f"{self._server.url}/v1/chat/completions", json=body, timeout=30)

    def answer(self) -> httpx.Response:
        self.join(30)
        assert self.response is not None, "the connection was cut"
        return self.response


def at_work(server: Started, text: str) -> list[Asking]:
    asked = [Asking(server, text, stream) for stream in (False, True, True)]
    until(lambda: server.stats()["running"] == 3)
    return asked


def test_a_signal_drains() -> None:
    with started() as server:
        asked = at_work(server, "slow 50")
        server.signal()
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 503)
        late = httpx.post(
            f"{server.url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "x"}]},
        )
        assert late.status_code == 503 and "retry-after" in late.headers
        assert late.json()["error"]["code"] == "shutting_down"
        assert httpx.get(f"{server.url}/health").status_code == 200
        for one in asked:
            assert one.answer().status_code == 200
        assert asked[0].answer().json()["choices"][0]["message"]["content"] == "s" * 50
        assert all(events_of(one.answer().text)[-1] == "[DONE]" for one in asked[1:])
        assert server.ended(5) == 0


@pytest.mark.parametrize(
    ("signals", "number"), [(1, signal.SIGTERM), (2, signal.SIGTERM), (2, signal.SIGINT)]
)
def test_what_does_not_end_is_cut_with_an_error(signals: int, number: int) -> None:
    with started(drain_s=0.3 if signals == 1 else 60.0) as server:
        asked = at_work(server, "endless")
        began = time.monotonic()
        for _ in range(signals):
            server.signal(number)
            time.sleep(0.1)
        whole, *streams = [one.answer() for one in asked]
        assert whole.status_code == 503 and whole.json()["error"]["code"] == "shutting_down"
        for stream in streams:
            assert events_of(stream.text)[-1]["error"]["code"] == "shutting_down"
        assert server.ended(5) == 0 and time.monotonic() - began < 5
    assert not any("Traceback" in line for line in server.lines)


def test_idle_it_ends_at_once() -> None:
    with started() as server:
        with httpx.Client() as client:  # a connection that stays open
            assert client.get(f"{server.url}/health").status_code == 200
            server.signal()
            assert server.ended(3) == 0


def test_an_address_that_is_taken_is_a_users_mistake() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UserError, match="--port"):
            bind("127.0.0.1", taken.getsockname()[1])
    for host in ("nowhere.invalid", "300.1.1.1", "8.8.8.8"):
        with pytest.raises(UserError, match="cannot listen"):
            bind(host, 0)


def test_what_is_loaded_is_not_searched_for_garbage_while_serving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, float]] = []
    found = gc.get_freeze_count, sys.getswitchinterval
    monkeypatch.setattr(
        lifecycle.Server, "run", lambda *given, **named: seen.append((found[0](), found[1]()))
    )
    before, interval = gc.get_freeze_count(), sys.getswitchinterval()
    try:
        with bind("127.0.0.1", 0) as listener:
            lifecycle.serve(ScriptedEngine(), Settings(), listener)
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval)
    ((frozen, waits),) = seen
    assert frozen > before + 10_000 and waits < interval
