"""A request's life in the engine: queued, running, preempted, cancelled, refused, drained; and the
engine's own. Over a runner of canaries, so that no model is in the way."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from mkport.engine import engine as engine_module
from mkport.engine.engine import Engine, collect
from mkport.engine.loop import Loop
from mkport.engine.ran import Ran
from mkport.engine.request import EngineLike, Event, Grammar, QueueFull, Sampling
from mkport.engine.runner import StepFailed
from mkport.engine.sampled import Draw
from mkport.engine.sampling import Sampler
from mkport.engine.scheduler import Limits
from mkport.engine.sequence import Plan
from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError
from tests.engine.oracle_runner import VOCAB, OracleRunner, continued

LIMITS = Limits(64, 4, ((20, 0), (16, 10)), sequences=3, rows=11, chunk=8, mixed_chunk=4)
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


class Gated(OracleRunner):
    """Steps wait for the gate; what a test wants to happen in one stands in `faults`."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.gate = threading.Semaphore(10**9)
        self.entered = threading.Semaphore(0)
        self.faults: list[Callable[[Plan, Ran], Ran]] = []
        self.closed = False

    def hold(self) -> None:
        """From now on `gate.release` lets single steps go."""
        self.gate, self.entered = threading.Semaphore(0), threading.Semaphore(0)

    def run(self, plan: Plan, draws: Sequence[Draw], trace: bool = False) -> Ran:
        self.entered.release()
        assert self.gate.acquire(timeout=20)
        ran = super().run(plan, draws, trace)
        return self.faults.pop(0)(plan, ran) if self.faults else ran

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def runner() -> Gated:
    return Gated(LIMITS)


@pytest.fixture
def engine(runner: Gated, single_bytes: Tokenizer) -> Iterator[Engine]:
    made = Engine.over(runner, single_bytes, "oracle", VOCAB, max_waiting=6)
    yield made
    runner.gate.release(10_000)
    made.close()


def sampling(max_tokens: int, **fields: Any) -> Sampling:
    return Sampling(max_tokens, **{**GREEDY, **fields})


def loop_of(engine: Engine) -> Loop:
    """The loop in this process."""
    assert isinstance(engine._loop, Loop)
    return engine._loop


def settled(engine: Engine) -> None:
    """Waits until nothing runs; then all pages must be back."""
    for _ in range(500):
        if not loop_of(engine).core.jobs and loop_of(engine)._inbox.empty():
            break
        time.sleep(0.01)
    loop_of(engine).core.scheduler.check()
    assert engine.stats().kv_usage == 0 and loop_of(engine).waiting == 0


def test_it_is_what_the_server_needs(engine: Engine) -> None:
    needed: EngineLike = engine
    assert (needed.name, needed.context, needed.vocab, needed.max_batch) == ("oracle", 64, 64, 3)
    assert engine.generate([5, 6], 3, **GREEDY).ids == continued([5, 6], 3)


def test_cancelled_while_queued_prefilling_and_decoding(engine: Engine, runner: Gated) -> None:
    runner.hold()
    long = [list(range(i, i + 20)) for i in range(5)]
    streams = [engine.submit(ids, sampling(30)) for ids in long]
    assert runner.entered.acquire(timeout=20)  # the first is in its first chunk of 8
    streams[0].cancel()  # prefilling
    streams[4].cancel()  # queued
    streams[4].cancel()  # twice is fine
    runner.gate.release(2)
    for stream in (streams[0], streams[4]):
        assert [event.reason for event in stream] == ["abort"]
    runner.gate.release(20)
    event = next(streams[1])
    assert event.ids == (continued(long[1], 1)[0],)
    streams[1].cancel()  # decoding
    runner.gate.release(1000)
    assert [e.reason for e in streams[1]][-1] == "abort"
    for index in (2, 3):  # the others never notice
        assert collect(streams[index])[0].ids == continued(long[index], 30)
    streams[2].cancel()  # after its end
    settled(engine)


def test_cancelled_while_preempted(engine: Engine, runner: Gated) -> None:
    """Two that need 16 of 20 pages each cannot both stay."""
    prompts = [[1] * 30, [2] * 30]
    runner.hold()
    streams = [engine.submit(ids, sampling(34)) for ids in prompts]
    scheduler = loop_of(engine).core.scheduler
    for _ in range(200):
        runner.gate.release()
        assert runner.entered.acquire(timeout=20)
        if scheduler.preempted:
            break
    assert len(scheduler.preempted) == 1
    streams[1].cancel()
    runner.gate.release(1000)
    assert collect(streams[1])[0].reason == "abort"
    assert collect(streams[0])[0].ids == continued(prompts[0], 34)
    settled(engine)
    assert engine.generate(prompts[1], 34, **GREEDY).ids == continued(prompts[1], 34)


def test_cancelled_in_its_last_step(engine: Engine, runner: Gated) -> None:
    runner.hold()
    stream = engine.submit([1, 2, 3], sampling(1))
    assert runner.entered.acquire(timeout=20)
    stream.cancel()
    runner.gate.release(10)
    assert [event.reason for event in stream] == ["length"]
    settled(engine)


def test_choices_share_their_prompt(engine: Engine) -> None:
    prompt = list(range(18))
    stream = engine.submit(prompt, sampling(5), n=3)
    assert [out.ids for out in collect(stream, 3)] == [continued(prompt, 5)] * 3
    assert stream.accepted is not None and stream.accepted.prompt_tokens == 18
    assert engine.stats().prompt_tokens == 18  # run once


@pytest.mark.parametrize(
    ("prompt", "given", "n", "named"),
    [
        ([], {"max_tokens": 1}, 1, "empty"),
        ([1] * 64, {"max_tokens": 1}, 1, "64 tokens, but the context has 64 positions"),
        ([1] * 65, {"max_tokens": 0}, 1, "65 tokens"),
        ([1, 64], {"max_tokens": 1}, 1, "Token id 64 is outside"),
        ([-1], {"max_tokens": 1}, 1, "Token id -1 is outside"),
        ([1], {"max_tokens": 1, "logit_bias": {64: 1.0}}, 1, "Token id 64 is outside"),
        ([1], {"max_tokens": 1, "stop_token_ids": (3, 99)}, 1, "Token id 99 is outside"),
        ([1], {"max_tokens": 1}, 0, "0 choices"),
        ([1], {"max_tokens": -1}, 1, "max_tokens = -1"),
        ([1], {"max_tokens": 2.5}, 1, "max_tokens = 2.5"),
        ([1], {"max_tokens": 1, "temperature": math.nan}, 1, "temperature = nan"),
        ([1], {"max_tokens": 1, "temperature": -1.0}, 1, "temperature = -1.0"),
        ([1], {"max_tokens": 1, "temperature": "1"}, 1, "temperature = '1'"),
        ([1], {"max_tokens": 1, "top_p": 0.0}, 1, "top_p = 0.0"),
        ([1], {"max_tokens": 1, "top_k": -5}, 1, "top_k = -5"),
        ([1], {"max_tokens": 1, "min_p": 2.0}, 1, "min_p = 2.0"),
        ([1], {"max_tokens": 1, "repetition_penalty": 0.0}, 1, "repetition_penalty = 0.0"),
        ([1], {"max_tokens": 1, "frequency_penalty": math.inf}, 1, "frequency_penalty = inf"),
        ([1], {"max_tokens": 1, "seed": 2**70}, 1, "seed = 1180591620717411303424"),
        ([1], {"max_tokens": 1, "stop": ("",)}, 1, "not empty"),
        ([1], {"max_tokens": 1, "logit_bias": {1: math.nan}}, 1, "finite"),
        ([1], {"max_tokens": 1, "logit_bias": {"1": 1.0}}, 1, "whole numbers"),
        ([1], {"max_tokens": 1, "grammar": Grammar("json_schema", "[")}, 1, "does not compile"),
    ],
)
def test_what_can_never_run_is_refused(
    engine: Engine, prompt: list[int], given: dict[str, Any], n: int, named: str
) -> None:
    if "grammar" in given:
        pytest.importorskip("llguidance")
    with pytest.raises(UserError, match=named):
        engine.submit(prompt, Sampling(**given), n)
    settled(engine)


@pytest.mark.parametrize(
    ("prompt", "fields", "named"),
    [
        ([1.5, 2], {}, "1.5 is no token id"),
        ([True], {}, "True is no token id"),
        (None, {}, "None is neither text nor token ids"),
        (b"abc", {}, "neither text nor token ids"),
        ([1], {"tempratur": 1.0}, "no field 'tempratur': there are temperature, top_p"),
        ([1], {"stop_token_ids": 5}, "stop_token_ids = 5 must be a list"),
        ([1], {"stop": 5}, "stop = 5 must be a list"),
    ],
)
def test_a_notebook_s_mistakes(engine: Engine, prompt: Any, fields: Any, named: str) -> None:
    for ask in (engine.generate, engine.stream):
        with pytest.raises(UserError, match=named):
            list(ask(prompt, 2, **fields))
    settled(engine)


def test_a_notebook_s_stops(engine: Engine) -> None:
    """One text, or a list of them."""
    text = engine.generate([1], 8, **GREEDY).text
    for stop in (text[3], [text[3]], (text[3],)):
        assert engine.generate([1], 8, stop=stop, **GREEDY).stop == text[3]


def test_a_draw_that_no_machine_can_be_told_ends_its_request_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "check", lambda sampling: None)
    bad = engine.submit([1], Sampling(4, top_k=-5))
    good = engine.generate([2], 4, **GREEDY)
    (out,) = collect(bad)
    assert out.reason == "error" and good.ids == continued([2], 4)
    settled(engine)


def test_the_context_s_end(engine: Engine) -> None:
    """Prompt and output together fill every position, and no more."""
    out = engine.generate([3] * 60, 100, **GREEDY)
    assert (out.reason, out.ids) == ("length", continued([3] * 60, 4))
    assert len(engine.generate([3] * 63, 100, **GREEDY).ids) == 1
    stream = engine.submit([3] * 64, sampling(0))
    assert [(event.reason, event.ids) for event in stream] == [("length", ())]
    settled(engine)


def test_a_full_queue(engine: Engine, runner: Gated) -> None:
    runner.hold()
    streams = [engine.submit([1, 2], sampling(2)) for _ in range(3)]
    assert runner.entered.acquire(timeout=20)
    for _ in range(200):
        try:
            streams.append(engine.submit([1, 2], sampling(2)))
        except QueueFull as full:
            assert full.retry_s >= 1
            break
    assert 6 <= len(streams) <= 10
    runner.gate.release(1000)
    for stream in streams:
        assert collect(stream)[0].ids == continued([1, 2], 2)
    settled(engine)
    assert engine.generate([1, 2], 2, **GREEDY).ids == continued([1, 2], 2)


def test_a_row_of_nan_ends_its_request_alone(engine: Engine, runner: Gated) -> None:
    def broken(plan: Plan, ran: Ran) -> Ran:
        row = next(i for i, p in enumerate(plan.parts) if p.sequence.tokens[0] == 9)
        ran.choices[row] = -1
        ran.choices[row] = -1
        return ran

    runner.hold()
    good = engine.submit([1, 2], sampling(6))
    bad = engine.submit([9, 2], sampling(6))
    assert runner.entered.acquire(timeout=20)
    runner.gate.release()
    for _ in range(20):  # until both decode
        assert runner.entered.acquire(timeout=20)
        if len(loop_of(engine).core.scheduler.running) == 2:
            break
        runner.gate.release()
    runner.faults.append(broken)
    runner.gate.release(1000)
    out = collect(bad)[0]
    assert out.reason == "error" and "not finite" in out.error
    assert collect(good)[0].ids == continued([1, 2], 6)
    settled(engine)


def test_a_mistake_in_one_request_ends_it_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that nobody thought of."""

    draw = Sampler.draw

    def breaks(sampler: Sampler, *given: Any) -> Draw:
        if sampler.sampling.logit_bias:
            raise ZeroDivisionError("of all things")
        return draw(sampler, *given)

    monkeypatch.setattr(Sampler, "draw", breaks)
    bad = engine.submit([1], sampling(4, logit_bias={3: 1.0}))
    good = engine.submit([2], sampling(4))
    out = collect(bad)[0]
    assert out.reason == "error" and "of all things" in out.error
    assert collect(good)[0].ids == continued([2], 4)
    settled(engine)


def test_a_step_that_fails_ends_who_was_in_it(engine: Engine, runner: Gated) -> None:
    def stuck(plan: Plan, ran: Ran) -> Ran:
        raise StepFailed("worker 0 waits")

    runner.faults.append(stuck)
    out = engine.generate([1, 2, 3, 4, 5], 3, **GREEDY)
    assert (out.reason, out.error) == ("error", "worker 0 waits")
    again = engine.submit([1, 2, 3, 4, 5], sampling(3))
    assert collect(again)[0].ids == continued([1, 2, 3, 4, 5], 3)
    assert again.accepted is not None and again.accepted.cached_tokens == 0
    settled(engine)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_says_so(engine: Engine, runner: Gated) -> None:
    def dies(plan: Plan, ran: Ran) -> Ran:
        raise ValueError("out of luck")

    runner.hold()
    streams = [engine.submit([i], sampling(3), n=2) for i in (1, 2)]
    runner.faults.append(dies)
    runner.gate.release(10)
    for stream in streams:
        assert ["out of luck" in out.error for out in collect(stream, 2)] == [True, True]
    loop_of(engine)._thread.join(10)
    assert engine.heartbeat_s() == math.inf and runner.closed
    with pytest.raises(QueueFull):
        engine.submit([1], sampling(1))


def test_the_heartbeat_goes_on_when_idle(engine: Engine, runner: Gated) -> None:
    time.sleep(1.1)
    assert engine.heartbeat_s() < 1
    runner.hold()
    stream = engine.submit([1], sampling(1))
    assert runner.entered.acquire(timeout=20)
    time.sleep(0.3)
    assert engine.heartbeat_s() > 0.25  # a step that hangs is seen
    runner.gate.release(10)
    collect(stream)


@pytest.mark.parametrize("drain_s", [0.0, 20.0])
def test_closing(engine: Engine, runner: Gated, drain_s: float) -> None:
    runner.hold()
    streams = [engine.submit([i, i], sampling(5)) for i in range(5)]
    assert runner.entered.acquire(timeout=20)
    closer = threading.Thread(target=engine.close, args=(drain_s,))
    closer.start()
    while loop_of(engine).state == "open":
        time.sleep(0.001)
    with pytest.raises(QueueFull):
        engine.submit([1], sampling(1))
    runner.gate.release(1000)
    ends = {collect(stream)[0].reason for stream in streams}
    closer.join(10)
    assert ends == ({"length"} if drain_s else {"abort"})
    assert engine.heartbeat_s() == math.inf and runner.closed
    with pytest.raises(UserError, match="closed"):
        engine.generate([1], 1)


def test_many_streams_in_one_event_loop(engine: Engine) -> None:
    async def one(first: int) -> list[Event]:
        while True:
            try:
                stream = engine.submit([first, 7], sampling(8))
                return [event async for event in stream]
            except QueueFull:
                await asyncio.sleep(0.001)

    async def all_of_them() -> list[list[Event]]:
        return await asyncio.gather(*(one(i) for i in range(30)))

    for first, events in enumerate(asyncio.run(all_of_them())):
        assert [t for e in events for t in e.ids] == continued([first, 7], 8)
        assert events[-1].reason == "length"
    settled(engine)


def test_a_wait_that_is_given_up_loses_nothing(engine: Engine, runner: Gated) -> None:
    async def impatient() -> list[int]:
        runner.hold()
        stream = engine.submit([4, 4], sampling(3))
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(stream), 0.02)
        runner.gate.release(100)
        return [token async for event in stream for token in event.ids]

    assert asyncio.run(impatient()) == continued([4, 4], 3)


def test_a_loop_that_is_gone_cancels(engine: Engine, runner: Gated) -> None:
    async def left() -> Any:
        stream = engine.submit([4, 4], sampling(60))
        await anext(stream)
        runner.hold()
        return stream

    asyncio.run(left())
    runner.gate.release(1000)
    settled(engine)


def test_text_for_a_notebook(engine: Engine) -> None:
    several = engine.generate([[1], [2], [3]], 4, **GREEDY)
    assert [out.ids for out in several] == [continued([i], 4) for i in (1, 2, 3)]
    assert "".join(engine.stream([5], 4, **GREEDY)) == engine.generate([5], 4, **GREEDY).text

    async def joined() -> str:
        return "".join([piece async for piece in engine.astream([5], 4, **GREEDY)])

    assert asyncio.run(joined()) == engine.generate([5], 4, **GREEDY).text
    for _piece in engine.stream([5], 50, **GREEDY):
        break  # leaving early cancels
    settled(engine)


def test_a_reset_forgets_prompts(engine: Engine) -> None:
    def cached() -> int:
        stream = engine.submit(list(range(17)), sampling(1))
        collect(stream)
        assert stream.accepted is not None
        return stream.accepted.cached_tokens

    assert [cached(), cached()] == [0, 16]
    engine.reset_prefix_cache()
    assert cached() == 0


def test_stop_tokens(engine: Engine) -> None:
    out = continued([5], 9)
    at = next(i for i in range(2, 9) if out[i] not in out[:i])
    ended = engine.generate([5], 20, **GREEDY, stop_token_ids=(out[at],))
    assert (ended.reason, ended.stop, ended.ids) == ("stop", out[at], out[: at + 1])
    text = engine.generate([5], 9, **GREEDY).text
    cut = engine.generate([5], 9, **GREEDY, stop=(text[2:4],))
    assert (cut.reason, cut.stop, cut.text) == ("stop", text[2:4], text[: text.index(text[2:4])])
    settled(engine)
