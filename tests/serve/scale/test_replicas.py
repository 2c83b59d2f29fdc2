"""Replicas behind one endpoint: passed on, balanced, killed under load, restarted."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from mkport.engine import replicas
from mkport.errors import UserError

FAKE = Path(__file__).with_name("fake_replica.py")
SERVER = f"""
import asyncio, socket, sys
from mkport.engine import replicas
from mkport.engine.server.settings import Settings
replicas.WATCH_S, replicas.BACKOFF_S = 0.2, (0.1, 1.0)
command = lambda port: [sys.executable, {str(FAKE)!r}, str(port)]
settings = Settings(head_s=2.0, body_s=2.0, max_held=9 << 20)
ready = lambda: print("ready", flush=True)
asyncio.run(replicas.run(2, command, socket.socket(fileno=int(sys.argv[1])), ready, settings))
"""


class Endpoint:
    """Two replicas and their router, in processes of their own."""

    def __init__(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        number = listening.fileno()
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(number)], pass_fds=[number], stdout=subprocess.PIPE
        )
        listening.close()
        assert self.process.stdout is not None
        with self.process.stdout as said:
            assert said.readline() == b"ready\n"
        self.client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        self.wait_ready(2)

    def wait_ready(self, replicas: int) -> dict[str, Any]:
        until = time.monotonic() + 20
        while True:
            try:
                told: dict[str, Any] = self.client.get("/health").json()
                if told["ready"] == replicas:
                    return told
            except httpx.TransportError:
                assert self.process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)

    def ask(self, tokens: int = 1, pause: float = 0, stream: bool = True, **more: Any) -> Any:
        """The events of one answer, and which replica wrote it."""
        body = {"tokens": tokens, "pause": pause, "stream": stream} | more
        if not stream:
            return self.client.post("/v1/chat/completions", json=body)
        with self.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
            return [json.loads(line) if line != "[DONE]" else line for line in lines]

    def pids(self) -> set[int]:
        """The process of each replica."""
        found: set[int] = set()
        while len(found) < 2:  # both, since the second request finds the first replica busy
            with ThreadPoolExecutor(2) as pool:
                for events in pool.map(lambda _: self.ask(1, 0.1), range(2)):
                    found.add(events[0]["pid"])
        return found

    def close(self) -> None:
        self.process.terminate()
        assert self.process.wait(20) == 0
        self.client.close()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    opened = Endpoint()
    yield opened
    opened.close()


def test_requests_are_passed_on_whole(endpoint: Endpoint) -> None:
    told = endpoint.client.get("/echo?a=1&b=%2F", headers={"Authorization": "Bearer k"})
    assert told.json() == {"query": "a=1&b=%2F", "key": "Bearer k"}
    assert endpoint.client.get("/nowhere").status_code == 404
    too_much = endpoint.client.post("/v1/chat/completions", content=b"x" * (9 << 20))
    assert too_much.status_code == 413
    assert too_much.json()["error"]["message"]


def test_a_whole_answer_says_how_long_it_is(endpoint: Endpoint) -> None:
    """So that clients of HTTP/1.0, to which nothing comes in chunks, read it."""
    answer = endpoint.ask(stream=False)
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "transfer-encoding" not in answer.headers
    head = endpoint.client.head("/metrics")
    assert head.status_code in (200, 405) and head.content == b""
    assert endpoint.client.get("/nowhere").headers["content-length"]


REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000, 431),
        (b"GET / HTTP/1.1\r\nx: ", 408),
        (REQUEST + b"Content-Length: 50\r\n\r\n{", 408),
        (REQUEST + b"Content-Length: 9000000\r\n\r\n", 413),
    ],
)
def test_what_is_no_request_is_refused_in_the_server_s_form(
    endpoint: Endpoint, sent: bytes, status: int
) -> None:
    said = answer_to(endpoint, sent)
    head, _, body = said.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def answer_to(endpoint: Endpoint, sent: bytes) -> bytes:
    """What comes back for these bytes."""
    host, port = endpoint.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(sent)
        said = b""
        while not said.endswith(b"}") and (part := connection.recv(65536)):
            said += part
    return said


def test_the_memory_for_bodies_is_shared(endpoint: Endpoint) -> None:
    host, port = endpoint.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as slow:
        slow.sendall(REQUEST + b"Content-Length: 8000000\r\n\r\n" + b" " * 7_000_000)
        time.sleep(0.3)
        full = endpoint.client.post("/v1/chat/completions", content=b" " * 4_000_000)
        assert full.status_code == 503 and full.headers["retry-after"]
        assert endpoint.ask(stream=False).status_code == 200
    time.sleep(0.3)
    padded = json.dumps({"tokens": 1, "pause": 0, "pad": " " * 4_000_000}).encode()
    assert endpoint.client.post("/v1/chat/completions", content=padded).status_code == 200


def test_a_talk_stays_with_its_replica(endpoint: Endpoint) -> None:
    talk = [{"role": "user", "content": "a" * 2000}]
    wrote = []
    for _ in range(4):
        wrote.append(endpoint.ask(messages=talk)[0]["pid"])
        talk += [{"role": "user", "content": "more" * 100}]
    other = endpoint.ask(messages=[{"role": "user", "content": "b" * 2000}])
    assert len(set(wrote)) == 1
    assert other[-1] == "[DONE]"


def test_a_full_replica_passes_its_request_to_the_other(endpoint: Endpoint) -> None:
    with ThreadPoolExecutor(3) as pool:
        talk: dict[str, Any] = {"messages": [{"role": "user", "content": "c" * 2000}]}
        first = [pool.submit(endpoint.ask, 10, 0.1, **talk)]
        time.sleep(0.3)
        second = pool.submit(endpoint.ask, 10, 0.1, full=True, **talk)
        time.sleep(0.3)
        third = pool.submit(endpoint.ask, stream=False, full=True, **talk)
        assert first[0].result()[0]["pid"] != second.result()[0]["pid"]
        assert third.result().status_code == 503
        assert third.result().headers["retry-after"] == "7"


def test_a_client_that_leaves_ends_its_request(endpoint: Endpoint) -> None:
    for stream in (True, False):
        with pytest.raises(httpx.TimeoutException):
            body = {"tokens": 1000, "pause": 1, "first": 1000, "stream": stream}
            endpoint.client.post("/v1/chat/completions", json=body, timeout=0.3)
    until = time.monotonic() + 5
    while endpoint.client.get("/stats").json()["running"]:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_what_replicas_have_a_part_of_is_one_answer(endpoint: Endpoint) -> None:
    endpoint.pids()
    stats = endpoint.client.get("/stats").json()
    assert stats["model"] == "fake"
    assert stats["kv_usage"] == 0.5
    text = endpoint.client.get("/metrics").text
    counted = {
        index: float(line.split()[-1])
        for index in "01"
        for line in text.splitlines()
        if line.startswith("fake_requests_total") and f'replica="{index}"' in line
    }
    assert sum(counted.values()) == stats["steps"] > 0
    assert text.count("# TYPE") == 1


def test_a_killed_replica_loses_no_request_that_had_not_begun(endpoint: Endpoint) -> None:
    victim, other = endpoint.pids()
    before = sum(one["restarts"] for one in endpoint.wait_ready(2)["replicas"])
    with ThreadPoolExecutor(24) as pool:
        begun = [pool.submit(endpoint.ask, 30, 0.05) for _ in range(8)]
        waiting = [pool.submit(endpoint.ask, 3, 0.05, first=1.0) for _ in range(8)]
        whole = [pool.submit(endpoint.ask, 20, 0.05, stream=False) for _ in range(8)]
        time.sleep(0.5)
        os.kill(victim, signal.SIGKILL)
        ends = [events.result() for events in begun]
        assert all(events.result()[-1] == "[DONE]" for events in waiting)
        assert all(answer.result().status_code == 200 for answer in whole)
        assert {answer.result().json()["pid"] for answer in whole} == {other}
    lost = [events for events in ends if events[-1] != "[DONE]"]
    assert 0 < len(lost) < len(ends)
    for events in lost:
        assert events[0]["pid"] == victim
        assert events[-1]["error"]["code"] == "replica_lost"
    after = endpoint.wait_ready(2)
    assert sum(one["restarts"] for one in after["replicas"]) == before + 1
    assert victim not in endpoint.pids()


def test_a_request_that_fells_replicas_is_given_up(endpoint: Endpoint) -> None:
    answer = endpoint.ask(stream=False, fatal=True)
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "replica_lost"
    endpoint.wait_ready(2)


def test_replicas_end_with_their_router() -> None:
    endpoint = Endpoint()
    pids = endpoint.pids()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(endpoint.ask, 10, 0.1)
        time.sleep(0.3)
        endpoint.close()
        assert answer.result()[-1] == "[DONE]"  # it was let finish
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_replica_that_refuses_to_start_is_a_users_mistake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-c", "raise SystemExit(2)"]
        with pytest.raises(UserError, match="cannot start"):
            asyncio.run(replicas.run(1, lambda port: command, listening))


def test_a_taken_port_is_a_users_mistake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(UserError, match="cannot listen"):
            replicas.serve(2, "127.0.0.1", taken.getsockname()[1], [])


@pytest.mark.parametrize(("cores", "count"), [(8, 2), (7, 3), (2, 2), (1, 3)])
def test_replicas_share_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    shares = replicas._shares(count)
    assert len(shares) == count
    assert all(shares)
    assert set().union(*shares) == set(range(cores))
    if cores >= count:
        assert sum(map(len, shares)) == cores
