"""The benchmark's experiments and report, on a server whose engine is scripted."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from mkport.engine.bench.serving import experiments, mixes, servers
from mkport.engine.bench.serving.race import Report
from mkport.engine.bench.serving.report import overheads, plots, table
from mkport.errors import UserError
from tests.serve.live import serving
from tests.serve.scripted import Asked, ScriptedEngine, Wait

PLAN = servers.Plan("scripted", (), (), (), "/ready", "scripted")


def _story(asked: Asked) -> list[Any]:
    return [item for _ in range(asked.sampling.max_tokens) for item in ("w", Wait(0.002))]


@pytest.fixture(scope="module")
def report() -> Report:
    """Every experiment once, of a server that says "w" every few milliseconds."""
    made = Report("a test's machine", "3", "none", 1, "scripted")
    with serving(ScriptedEngine(_story, context=40_000, chunk=256, step_s=5e-4)) as live:
        address = ("127.0.0.1", int(live.url.rpartition(":")[2]))
        server = servers.Server(PLAN, address, None)  # type: ignore[arg-type]
        made.bare = {1: [100.0], 2: [220.0]}
        made.crowd = {"scripted": {n: [experiments.crowd(server, n, 0, 20)] for n in (1, 2)}}
        made.prefill = {"mkport": [2.0, 2.2, 1.0], "other way": [1.0, 1.5]}
        made.follow_up = [experiments.follow_up(server, 0)]
        made.beside_long = [experiments.beside_long(server, 0, 800, 1.0)]
        made.load = [
            experiments.load(server, "chat", 4, 0, at_once=2),
            experiments.load(server, "agent", 4, 0, a_second=50.0),
        ]
    made.versions, made.skipped = {"scripted": {"x": "1"}}, {"other": "not installed"}
    return made


def test_a_crowd_writes_at_the_same_time(report: Report) -> None:
    for chats, (row,) in report.crowd["scripted"].items():
        samples = row["samples"]
        assert [s["tokens"] for s in samples] == [20] * chats
        spent_s = max(s["ended_ms"] for s in samples) / 1e3
        assert row["tokens_per_second"] == pytest.approx(20 * chats / spent_s, rel=0.2)
        # less the first token's time, and one token: near it, where the first comes at once
        assert row["writing_tokens_per_second"] > 0.8 * row["tokens_per_second"]
    alone = report.crowd["scripted"][1][0]
    gaps_ms = alone["samples"][0]["gaps_ms"]
    assert alone["writing_tokens_per_second"] == pytest.approx(1e3 * 19 / sum(gaps_ms), rel=0.01)


def test_gaps_before_and_during_the_long_prompt_are_told_apart(report: Report) -> None:
    (row,) = report.beside_long
    *neighbours, long = row["samples"]
    assert len(neighbours) == experiments.NEIGHBOURS
    assert long["sent_ms"] >= max(s["first_ms"] for s in neighbours) + 990
    assert len(row["idle_s"]) > 10 * experiments.NEIGHBOURS
    assert row["during_s"]
    alone_ms = long["sent_ms"] - max(s["first_ms"] for s in neighbours)
    after_ms = min(s["ended_ms"] for s in neighbours) - long["ended_ms"]
    inside_ms = 1e3 * sum(row["idle_s"]) / experiments.NEIGHBOURS
    assert 0.8 * alone_ms < inside_ms < alone_ms + max(after_ms, 0.0) + 20


def test_the_follow_up_continues_the_first_turn(report: Report) -> None:
    first, second = report.follow_up[0]["samples"]
    assert second["prompt_tokens"] > first["prompt_tokens"] > experiments.LONG
    assert report.follow_up[0]["uncached_s"] == pytest.approx(first["first_ms"] / 1e3, abs=1e-4)


def test_the_table_and_the_pictures_say_what_was_measured(report: Report, tmp_path: Path) -> None:
    text = table(report)
    assert "other took no part: not installed" in text
    served = report.crowd["scripted"][1][0]["writing_tokens_per_second"]
    assert overheads(report, 1) == [pytest.approx(100 / served - 1)]
    assert f"{100 * overheads(report, 1)[0]:.1f} %" in text
    assert "agent, 50/s" in text
    assert "| mkport | 2.0 (1.0-2.2) | 1.00x |" in text
    assert "| other way | 1.2 (1.0-1.5) | 0.62x |" in text
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    written = plots(report, tmp_path / "out")
    assert [path.name for path in written] == ["out-crowd.svg", "out-gaps.svg"]
    assert all("<svg" in path.read_text() for path in written)
    json.dumps(report.as_dict(), allow_nan=False)


def test_a_failed_request_ends_the_benchmark() -> None:
    with serving(ScriptedEngine(lambda asked: "Hello", context=100)) as live:
        address = ("127.0.0.1", int(live.url.rpartition(":")[2]))
        server = servers.Server(PLAN, address, None)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="scripted failed a request.*context"):
            experiments.follow_up(server, 0)


def test_a_server_that_cannot_run_says_why() -> None:
    absent = servers.Plan("one", (), ("no_such_module_here",), (), "/", "")
    broken = servers.Plan("two", ("/bin/sh", "-c", "echo lost >&2; exit 3"), (), (), "/", "")
    for plan, why in ((absent, "no_such_module_here"), (broken, "lost")):
        with pytest.raises(servers.CannotRun, match=why):
            with servers.running(plan):
                pass


def test_mixes_are_the_same_for_a_seed_and_have_their_shape() -> None:
    def body(messages: list[dict[str, str]], tokens: int) -> dict[str, Any]:
        return {"messages": messages, "max_tokens": tokens}

    for make in (mixes.chats, mixes.agents):
        assert make(30, body, 1) == make(30, body, 1) != make(30, body, 2)
    agents = [ask.body["messages"] for ask in mixes.agents(mixes.AGENT_STEPS + 1, body)]
    for step, later in zip(agents[:-1], agents[1:-1], strict=False):
        assert later[: len(step)] == step  # a talk only grows
    assert agents[-1][0] == agents[0][0]  # the next begins with the same system prompt
    assert len(agents[-1]) == len(agents[0]) == 2
    assert agents[-1][1] != agents[0][1]
    draw = random.Random(0)
    lengths = sorted(mixes.lognormal(draw, mixes.CHAT_PROMPT) for _ in range(2000))
    assert lengths[1000] == pytest.approx(mixes.CHAT_PROMPT[0], rel=0.1)
    assert lengths[0] == mixes.CHAT_PROMPT[2]
    assert 1000 < lengths[-1] <= mixes.CHAT_PROMPT[3]
    arriving = mixes.arriving(mixes.chats(2000, body), 4.0)
    assert arriving[-1].at == pytest.approx(500, rel=0.1)
