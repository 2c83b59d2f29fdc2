"""An engine that runs a step ahead of the host says what one says that does not: choices of the
machine and of the host, grammars, stops, log probabilities, cancellation, preemption."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mkport.engine import build as build_module
from mkport.engine.engine import Engine, Output, collect
from mkport.engine.load import LoadedModel, load
from mkport.engine.request import Grammar, Sampling
from mkport.engine.sequence import PENDING
from mkport.engine.steps import Steps
from mkport.engine.synth import synthesise
from mkport.engine.target import CPU, HostArrays, Target
from mkport.machines.cpu.machine import Stuck
from tests.engine.apart_build import Late
from tests.engine.checkpoints import one_program

CONTEXT, PAGE, VOCAB = 128, 16, 288
WEATHER = '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}'
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0, "seed": 5},
    "truncated": {"temperature": 1.0, "top_p": 0.8, "seed": 6},
    "penalised": {"temperature": 0.7, "repetition_penalty": 1.3, "seed": 7},
    "early": {"temperature": 1.0, "min_tokens": 9, "stop_token_ids": tuple(range(80)), "seed": 8},
    "told": {"temperature": 0.0, "logprobs": 2},
    "prompt told": {"temperature": 0.0, "prompt_logprobs": 1, "logprobs": 1},
    "stopped": {"temperature": 1.0, "stop": ("a", "b", "xy"), "seed": 9},
    "grammar": {"temperature": 1.0, "grammar": Grammar("json_schema", WEATHER), "seed": 10},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    out: Path = tmp_path_factory.mktemp("late") / "model"
    synthesise("cohere2", "tiny", out, "f32", seed=2)
    return load(str(out))


@contextmanager
def serving(model: LoadedModel, target: Target, contexts: float = 6) -> Iterator[Engine]:
    one = model.config.layers * 2 * model.config.kv_width * CONTEXT * 4
    with one_program(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "target_of", lambda name: target)
        sizes = {"max_model_len": CONTEXT, "page": PAGE, "workers": 2, "max_batch": 4}
        with Engine(model, kv_memory=int(contexts * one), **sizes) as engine:  # type: ignore[arg-type]
            yield engine


def requests(seed: int) -> list[tuple[list[int], Sampling, int]]:
    """Prompts and samplings of every kind, in a random order."""
    draw = random.Random(seed)
    found = []
    for name in [*KINDS, *KINDS]:
        ids = [draw.randrange(VOCAB) for _ in range(draw.choice([1, 15, 16, 17, 40]))]
        fields = {"ignore_eos": name != "grammar"} | KINDS[name]
        found.append((ids, Sampling(draw.randint(1, 80), **fields), draw.choice([1, 1, 3])))
    draw.shuffle(found)
    return found


def all_outputs(engine: Engine, seed: int) -> list[list[Output]]:
    streams = [(engine.submit(ids, s, n), n) for ids, s, n in requests(seed)]
    return [collect(stream, n) for stream, n in streams]


@pytest.mark.parametrize("contexts", [6, 1.2], ids=["roomy", "preempting"])
def test_it_says_the_same(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, contexts: float
) -> None:
    fed, fill = 0, Steps._fill

    def watched(steps: Steps, places: Any, tokens: Any, *more: Any) -> None:
        nonlocal fed
        fed += sum(token == PENDING for token in tokens)
        fill(steps, places, tokens, *more)

    monkeypatch.setattr(Steps, "_fill", watched)
    with serving(model, CPU, contexts) as engine:
        wanted = [all_outputs(engine, seed) for seed in range(2)]
    assert fed == 0
    with serving(model, Late(), contexts) as engine:
        assert [all_outputs(engine, seed) for seed in range(2)] == wanted
        assert (engine.stats().preemptions > 0) == (contexts < 2)
    assert fed > 100
    reasons = {out.reason for outs in wanted for out in sum(outs, [])}
    assert reasons == {"stop", "length"}


def test_cancelled_at_any_time(model: LoadedModel) -> None:
    """Half of the requests are cancelled after some tokens; the others never notice."""
    with serving(model, CPU) as engine:
        wanted = all_outputs(engine, 3)
    draw = random.Random(4)
    with serving(model, Late(), contexts=2) as engine:
        streams = [(engine.submit(ids, s, n), n) for ids, s, n in requests(3)]
        for at, (stream, n) in enumerate(streams):
            if at % 2:
                for _ in range(draw.randint(0, 3)):
                    next(stream, None)
                stream.cancel()
            else:
                assert collect(stream, n) == wanted[at]
        assert all_outputs(engine, 3) == wanted
    assert engine._loop.state == "closed"  # whose pages were all given back, or it had died


def test_closed_while_steps_are_under_way(model: LoadedModel) -> None:
    with serving(model, Late()) as engine:
        streams = [(engine.submit(ids, s, n), n) for ids, s, n in requests(5)]
        next(streams[0][0])
        engine.close()
        assert engine._loop.state == "closed"
        ended = [out.reason for stream, n in streams for out in collect(stream, n)]
    assert "abort" in ended and "error" not in ended


def test_a_step_that_fails_later_ends_those_in_it_and_behind_it(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch: Callable[..., Any] = Steps.launch
    steps = 0

    def failing(self: Steps, *args: Any) -> Any:
        nonlocal steps
        ran = launch(self, *args)
        steps += 1
        if steps == 6:

            def stuck() -> None:
                raise Stuck("worker 3 waits")

            ran.arrive = stuck
        return ran

    sampling = Sampling(30, temperature=0.0, ignore_eos=True)
    ids = [5, 6, 7]
    with serving(model, Late()) as engine:
        (wanted,) = collect(engine.submit(ids, sampling))
        monkeypatch.setattr(Steps, "launch", failing)
        (out,) = collect(engine.submit(ids, sampling))
        assert out.reason == "error" and "worker 3 waits" in out.error
        assert out.ids == wanted.ids[: len(out.ids)]
        assert collect(engine.submit(ids, sampling)) == [wanted]


def test_log_probabilities_come_where_they_are_asked_for(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    launch = HostArrays.launch

    def watched(self: HostArrays, machine: Any, wanted: int, told: bool, *more: Any) -> Any:
        seen.append(told)
        return launch(self, machine, wanted, told, *more)

    monkeypatch.setattr(HostArrays, "launch", watched)
    with serving(model, Late()) as engine:
        engine.generate([1, 2], 3, temperature=0.0)
        assert seen and not any(seen)
        seen.clear()
        engine.generate([1, 2], 3, temperature=0.0, logprobs=0)
        assert len(seen) >= 3 and all(seen)


def test_only_what_follows_a_grammar_sits_a_step_out(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    fill = Steps._fill

    def watched(steps: Steps, places: Any, tokens: Any, *more: Any) -> None:
        fed.append(sum(token == PENDING for token in tokens))
        fill(steps, places, tokens, *more)

    monkeypatch.setattr(Steps, "_fill", watched)
    with serving(model, Late()) as engine:
        for name, fields in KINDS.items():
            fed.clear()
            out = engine.generate([7, 8], 12, **({"ignore_eos": name != "grammar"} | fields))
            assert sum(fed) == (0 if name == "grammar" else len(out.ids) - 1 + (len(out.ids) < 12))
