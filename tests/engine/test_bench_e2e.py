"""Prompts of mixed lengths from end to end: on a small model, on the CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mkport.cli.main import app
from mkport.engine.bench.e2e import Report, Told, mix, run, table
from mkport.engine.engine import Engine
from mkport.engine.request import Event
from mkport.engine.stream import EventStream
from mkport.engine.synth import synthesise
from mkport.errors import UserError
from tests.engine.checkpoints import one_program


def test_the_mix_is_the_same_for_the_same_seed_and_fits_the_context() -> None:
    asks = mix(40, vocab=288, context=256, seed=1)
    assert asks == mix(40, vocab=288, context=256, seed=1) != mix(40, 288, 256, seed=2)
    assert all(len(ask.prompt) + ask.answer <= 256 and ask.answer for ask in asks)
    assert all(3 <= i < 288 for ask in asks for i in ask.prompt)
    lengths = [len(ask.prompt) for ask in asks]
    assert lengths[7::8] == [128] * 5 and min(lengths) < 40
    with pytest.raises(UserError, match="context of 20 positions is too short"):
        mix(1, 288, 20)


def test_requests_run_from_end_to_end(tmp_path: Path) -> None:
    synthesise("llama", "tiny", tmp_path / "model", "bf16", seed=3)
    asks = mix(9, vocab=288, context=96)
    turns: list[float] = []
    with (
        one_program(),
        Engine(str(tmp_path / "model"), max_batch=3, max_model_len=96, workers=2) as engine,
    ):
        report = run(engine, asks, "a CPU", rounds=2, advance=turns.append)
    assert len(turns) == 3 and len(report.seconds) == 2
    # what runs beside a request does not change it
    assert report.same_alone[0] == report.same_alone[1] > 0
    assert [len(firsts) for firsts in report.firsts] == [9, 9]
    assert len(report.gaps[0]) == sum(ask.answer - 1 for ask in asks)
    assert all(0 < first <= took for firsts, took in zip(report.firsts, report.seconds, strict=True)
               for first in firsts)  # fmt: skip
    text = table(report)
    assert f"| {sum(len(a.prompt) for a in asks)} | {sum(a.answer for a in asks)} |" in text
    assert json.loads(json.dumps(report.as_dict()))["answers"] == [ask.answer for ask in asks]


class Short:
    """An engine whose answers end early."""

    def reset_prefix_cache(self) -> None:
        pass

    def submit(self, prompt: Any, sampling: Any) -> EventStream:
        stream = EventStream("a", 1, lambda: None)
        stream.put(Event(0, ids=(5,)))
        stream.put(Event(0, reason="error", error="the logits are not finite"))
        return stream


def test_an_answer_that_ends_early_is_refused() -> None:
    short: Any = Short()
    with pytest.raises(UserError, match=r"'error' after 1 of \d+ tokens: the logits are not fin"):
        run(short, mix(1, 288, 256), "nothing")


def test_the_table_sorts_by_length() -> None:
    report = Report(
        model="m", machine="c", versions={"x": "1"}, commit="abc", batch=2, context=4096,
        prompts=[2048, 12, 100, 1023], answers=[1, 2, 3, 4], same_alone=(5, 6), preemptions=7,
        seconds=[2.0, 1.0, 4.0], firsts=[[0.9, 0.1, 0.2, 0.5]] * 3, gaps=[[0.01, 0.03]] * 3,
    )  # fmt: skip
    text = table(report)
    assert "| 3183 | 10 | 2.00 | 1.00-4.00 | 1596 | 5 |" in text
    rows = [line for line in text.splitlines() if "tokens |" in line or "and more" in line]
    assert "| under 128 tokens | 2 | 112 | 0.15 | 0.20 |" in text
    assert "| 128 to 1023 | 1 | 1023 | 0.50 | 0.50 |" in text
    assert rows and "| 1024 and more | 1 | 2048 | 0.90 | 0.90 |" in text
    assert "20.0 ms in the middle" in text and "6 tokens 5 are the same" in text
    assert Told(3, at=[1.0, 1.5, 3.0]).gaps == [0.5, 1.5]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--machine", "abacus"], "no machine 'abacus'"),
        (["--random", "llama/tiny", "--model", "x"], "not both"),
        (["--random", "llama/full"], "not written to a disk"),
    ],
)
def test_what_cannot_be_run_is_refused(args: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["bench", "e2e", *args])
    assert done.exit_code == 2 and words in " ".join(done.output.split())
