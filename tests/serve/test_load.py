"""What must not freeze the server: prompts of 20 MB, floods of requests, and minutes of misuse."""

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from mkport.doctor import cpu_model
from mkport.engine.bench.decode import commit
from mkport.engine.source import DEMO_PACKAGE
from mkport.files import write_text
from tests.serve.live import until
from tests.serve.load import Crowd
from tests.serve.process import Started, real, started
from tests.serve.watch import Watch, watching

HEALTH_S = 0.1
SOAK_S = float(os.environ.get("SOAK_S", "600"))  # how long a soak takes
SOAK_OUT = os.environ.get("SOAK_OUT", "")  # where what it found is written, as JSON
TRIES = 3  # other work on the machine can make a good server late, but nothing a bad one quick
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def idle() -> Iterator[str]:
    """The URL of a server that nobody else uses: how fast this machine lets one answer now."""
    with started() as server:
        yield server.url


def in_time(watch: Watch, server: Started, idle: str) -> bool:
    """Whether /health answered soon, or late only because the machine is too busy for anything."""
    assert not watch.bad
    return watch.p99(server.url) < max(HEALTH_S, 3 * watch.p99(idle))


def together(work: Any, times: int) -> None:
    """Does the same in so many threads."""
    threads = [threading.Thread(target=work) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


@pytest.mark.parametrize("max_body", [8 << 20, 64 << 20])
def test_a_prompt_of_20_mb_freezes_nothing(max_body: int, idle: str) -> None:
    assert any(large_prompts_in_time(max_body, idle) for _ in range(TRIES))


def large_prompts_in_time(max_body: int, idle: str) -> bool:
    text = "All work and no play makes Jack a dull boy. " * 460_000
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    statuses = []
    with started(max_body=max_body) as server, watching(server.url, idle) as watch:

        def ask() -> None:
            url = f"{server.url}/v1/chat/completions"
            response = httpx.post(url, content=body, headers=JSON, timeout=60)
            statuses.append(response.status_code)

        time.sleep(0.3)
        together(ask, 3)
        time.sleep(0.3)
    assert statuses == [413 if max_body < len(body) else 400] * 3
    return in_time(watch, server, idle)


def test_a_long_prompt_that_fits_freezes_nothing(idle: str) -> None:
    assert any(long_prompts_in_time(idle) for _ in range(TRIES))


def long_prompts_in_time(idle: str) -> bool:
    text = "All work and no play makes Jack a dull boy. " * 6_000
    with started({"context": 300_000}) as server, watching(server.url, idle) as watch:

        def ask() -> None:
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 2}
            response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
            assert response.status_code == 200
            assert response.json()["usage"]["prompt_tokens"] > 250_000

        time.sleep(0.3)
        together(ask, 2)
    return in_time(watch, server, idle)


def test_a_flood_freezes_nothing(idle: str) -> None:
    with started({"max_batch": 8, "step_s": 0.005}) as server, watching(server.url, idle) as watch:
        crowd = Crowd(server.url, 64, lambda draw: "Hi " * draw.randint(1, 500))
        time.sleep(3)
        crowd.stop()
        until(lambda: server.stats()["running"] + server.stats()["waiting"] == 0)
    assert in_time(watch, server, idle)
    assert crowd.seen["200"] > 20 and crowd.seen["400"] and crowd.seen["hung up"]
    assert set(crowd.seen) <= {"200", "400", "hung up", "503"}, crowd.seen


def soak(server: Started, seconds: float, idle: str, longest: int = 2000) -> None:
    """Misuse for so long, and no leak of memory, descriptors or sequences at its end."""

    def texts(draw: random.Random) -> str:
        return draw.choice(("endless", "slow 20", "Hi", "Hi " * draw.randint(1, longest)))

    with watching(server.url, idle) as watch:
        warm = Crowd(server.url, 24, texts)
        time.sleep(min(seconds / 4, 20))
        warm.stop()
        until(lambda: server.stats()["running"] + server.stats()["waiting"] == 0)
        memory, descriptors = server.memory(), server.descriptors()
        crowd = Crowd(server.url, 24, texts)
        time.sleep(seconds)
        crowd.stop()
        until(lambda: server.stats()["running"] + server.stats()["waiting"] == 0)
        time.sleep(0.5)
        found = {
            "machine": cpu_model(),
            "commit": commit(),
            "model": server.model(),
            "seconds": seconds,
            "requests": dict(crowd.seen),
            "health_p99_ms": 0.0,
            "idle_health_p99_ms": 0.0,
            "memory_mb": [round(memory / 1e6, 1), round(server.memory() / 1e6, 1)],
            "descriptors": [descriptors, server.descriptors()],
            "kv_usage": server.stats()["kv_usage"],
        }
    found["health_p99_ms"] = round(watch.p99(server.url) * 1e3, 1)
    found["idle_health_p99_ms"] = round(watch.p99(idle) * 1e3, 1)
    print(found)
    if SOAK_OUT:
        write_text(Path(SOAK_OUT), json.dumps(found, indent=1) + "\n")
    assert found["descriptors"][1] <= descriptors + 2
    assert server.memory() < memory * 1.1 + (8 << 20)
    assert found["kv_usage"] == 0
    assert in_time(watch, server, idle)
    assert set(crowd.seen) <= {"200", "400", "hung up", "503"}, crowd.seen


@pytest.mark.slow
def test_ten_minutes_of_misuse_leave_nothing_behind(idle: str) -> None:
    with started({"max_batch": 8, "step_s": 0.002}) as server:
        soak(server, SOAK_S, idle)


@pytest.mark.slow
@pytest.mark.skipif(find_spec(DEMO_PACKAGE) is None, reason="no demo model")
def test_ten_minutes_of_misuse_of_a_model_leave_nothing_behind(idle: str) -> None:
    # a cache that is soon full, so that its memory is all in use before it is looked at
    with real("--max-model-len", "1024", "--kv-memory", "40MB") as server:
        soak(server, SOAK_S, idle, 200)


def test_a_few_seconds_of_misuse_leave_nothing_behind(idle: str) -> None:
    with started({"max_batch": 8, "step_s": 0.002}) as server:
        soak(server, 3, idle)
