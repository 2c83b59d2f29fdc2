"""An engine whose loop runs in a process of its own: the same outputs, errors and ends as one whose
loop is a thread, and an end in words when that process dies."""

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mkport.engine.apart import ApartLoop
from mkport.engine.capacity import Settings
from mkport.engine.engine import Engine, collect
from mkport.engine.load import load
from mkport.engine.request import Grammar, QueueFull, Sampling
from mkport.engine.synth import synthesise
from mkport.engine.target import CPU
from mkport.errors import UserError
from tests.engine import apart_build
from tests.engine.test_run_ahead import CONTEXT, PAGE, VOCAB, all_outputs, requests, serving

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("apart") / "model"
    synthesise("cohere2", "tiny", out, "f32", seed=2)
    return out


@pytest.fixture(scope="module")
def shared(directory: Path) -> Iterator[Engine]:
    with started(directory) as engine:
        yield engine


def started(directory: Path, max_waiting: int = 256, build: Any = apart_build.late) -> Engine:
    model = load(str(directory))
    one = model.config.layers * 2 * model.config.kv_width * CONTEXT * 4
    settings = Settings(4, CONTEXT, 6 * one, page=PAGE)
    options = {"directory": directory, "settings": settings}
    return Engine.apart(build, options, model.tokenizer, VOCAB, max_waiting)


def test_it_says_the_same(directory: Path, shared: Engine) -> None:
    with serving(load(str(directory)), CPU) as engine:
        wanted = all_outputs(engine, 0)
        ids, sampling, _ = requests(0)[0]
        accepted = [engine.submit(ids, sampling) for _ in range(2)]
        for stream in accepted:
            collect(stream)
    assert all_outputs(shared, 0) == wanted
    again = [shared.submit(ids, sampling) for _ in range(2)]
    for stream, other in zip(again, accepted, strict=True):
        collect(stream)
        assert stream.accepted == other.accepted
    assert (shared.name, shared.context, shared.max_batch) == ("model", CONTEXT, 4)
    assert shared.heartbeat_s() < 1
    stats = shared.stats()
    assert stats.generation_tokens > 100 and stats.running == stats.waiting == 0


def test_mistakes_are_told_before_anything_is_sent(shared: Engine) -> None:
    with pytest.raises(UserError, match="outside the vocabulary"):
        shared.submit([VOCAB], Sampling(1))
    with pytest.raises(UserError):
        shared.submit([1], Sampling(1, grammar=Grammar("json_schema", '{"type": "nonsense"}')))
    assert len(shared.generate([1, 2], 3, **GREEDY).ids) == 3


def test_cancelled_and_reset(shared: Engine) -> None:
    with held(shared):
        stream = shared.submit([1, 2, 3], Sampling(100, **GREEDY))
        stream.cancel()
    assert [event.reason for event in stream][-1] == "abort"
    stream.cancel()
    shared.reset_prefix_cache()
    until(lambda: shared.stats().running == 0)
    cold = shared.submit(list(range(40)), Sampling(1, **GREEDY))
    collect(cold)
    assert cold.accepted is not None and cold.accepted.cached_tokens == 0


def test_the_timeline_comes_over(shared: Engine) -> None:
    def traced() -> bool:
        shared.generate([4, 5], 4, **GREEDY)
        return shared.timeline() is not None

    until(traced)
    trace = shared.timeline()
    assert trace is not None and trace.workers == 2


def test_what_cannot_be_built(single_bytes: Any) -> None:
    with pytest.raises(UserError, match="too large"):
        Engine.apart(apart_build.refused, {}, single_bytes, VOCAB)
    with pytest.raises(RuntimeError, match="nobody expected this"):
        Engine.apart(apart_build.broken, {}, single_bytes, VOCAB)


def test_its_process_dies(directory: Path) -> None:
    engine = started(directory)
    collect(engine.submit([1], Sampling(1)))
    with held(engine) as pid:
        prompts = [[1, 2, number] for number in range(3)]
        streams = [engine.submit(ids, Sampling(100, **GREEDY), 2) for ids in prompts]
        os.kill(pid, signal.SIGKILL)
    for stream in streams:
        found = collect(stream, 2)
        assert [out.reason for out in found] == ["error", "error"]
        assert "process has ended" in found[0].error
    assert engine.heartbeat_s() == math.inf
    with pytest.raises(QueueFull):
        engine.submit([1], Sampling(1))
    engine.close()


def test_its_loop_dies(directory: Path) -> None:
    engine = started(directory, build=apart_build.dying)
    with held(engine):
        prompts = [[1, number] for number in range(3)]
        streams = [engine.submit(ids, Sampling(60, **GREEDY), 2) for ids in prompts]
    for stream in streams:
        assert all("the fifth step" in out.error for out in collect(stream, 2))
    until(lambda: engine.heartbeat_s() == math.inf)
    late = engine.submit([1], Sampling(1))
    assert "could not be queued" in collect(late)[0].error
    engine.close()


def test_it_drains_and_closes(directory: Path) -> None:
    engine = started(directory, max_waiting=2)
    with held(engine):
        streams = [engine.submit([1, number], Sampling(60, **GREEDY)) for number in range(2)]
        with pytest.raises(QueueFull):
            engine.submit([1], Sampling(1))
    engine.close(drain_s=20)
    assert [len(collect(stream)[0].ids) for stream in streams] == [60, 60]
    with pytest.raises(QueueFull):
        engine.submit([1], Sampling(1))
    assert engine._loop._process.poll() == 0  # type: ignore[union-attr]


@contextmanager
def held(engine: Engine) -> Iterator[int]:
    """Its process stands still, so that nothing is quicker than the test; which process."""
    assert isinstance(engine._loop, ApartLoop)
    process = engine._loop._process
    process.send_signal(signal.SIGSTOP)
    yield process.pid
    process.send_signal(signal.SIGCONT)  # nothing, where it has ended


def until(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
