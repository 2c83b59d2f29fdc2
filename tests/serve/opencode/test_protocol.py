"""OpenCode against the server, with an oracle for a model: what it sends is understood, what it is
sent is done."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.serve.live import serving
from tests.serve.opencode.conftest import OpenCode, calls, errors, texts
from tests.serve.scripted import Asked, ScriptedEngine, Wait

CONTEXT = 44_000  # tokens are bytes here: OpenCode's own prompt and tools take about 31,000
SUMMARY = "## Objective\n- Find the word in the file."


def call(tool: str, **arguments: Any) -> str:
    """How the model asks for a tool."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


@dataclass
class Oracle:
    """Answers OpenCode's requests: a title, a summary, or the next of `turns`."""

    turns: list[str] = field(default_factory=list)
    title_s: float = 0.0  # what the title takes
    asked: dict[str, list[Asked]] = field(default_factory=dict)  # by kind of request
    began: dict[str, float] = field(default_factory=dict)  # when a kind was first answered

    def __call__(self, asked: Asked) -> Iterable[str | Wait]:
        kind = "turn"
        if "title generator" in asked.text[:200]:
            kind = "title"
        elif "context summarization agent" in asked.text[:200]:
            kind = "summary"
        self.asked.setdefault(kind, []).append(asked)
        return self._say(kind)

    def _say(self, kind: str) -> Iterator[str | Wait]:
        self.began.setdefault(kind, time.monotonic())
        if kind == "title":
            yield Wait(self.title_s)
            yield "A word in a file"
        else:
            yield SUMMARY if kind == "summary" else self.turns.pop(0)


@pytest.fixture
def oracle() -> Oracle:
    return Oracle()


@pytest.fixture
def url(oracle: Oracle) -> Iterator[str]:
    with serving(ScriptedEngine(oracle, context=CONTEXT, chunk=4096, step_s=1e-4)) as live:
        yield live.url


def test_a_file_is_read_and_the_question_answered(
    opencode: OpenCode, oracle: Oracle, url: str
) -> None:
    opencode.configure("opencode.json", url, "scripted")
    file = opencode.folder / "words.txt"
    file.write_text("The word is ostrich.\n")
    oracle.title_s = 3.0
    oracle.turns = [call("read", filePath=str(file)), "It is ostrich."]
    events = opencode.run("Which word is in words.txt?")
    (read,) = calls(events)
    assert read["tool"] == "read"
    assert "The word is ostrich." in read["state"]["output"]
    assert texts(events) == ["It is ostrich."]
    assert errors(events) == []
    first, second = oracle.asked["turn"]
    assert len(oracle.asked["title"]) == 1
    assert oracle.began["turn"] < oracle.began["title"] + oracle.title_s  # at the same time
    # the whole first prompt but its end is the second one's beginning: the cache serves it
    assert second.text.startswith(first.text.removesuffix("<|im_start|>assistant\n"))
    assert "The word is ostrich." in second.text
    assert first.sampling.max_tokens == 8192


def test_a_call_to_a_tool_that_is_not_there_is_replayed_and_lived_with(
    opencode: OpenCode, oracle: Oracle, url: str
) -> None:
    opencode.configure("opencode.json", url, "scripted")
    oracle.turns = [
        call("teleport", where="home"),
        call("read", path="no such argument"),
        "I cannot do that.",
    ]
    events = opencode.run("Go home.")
    assert texts(events) == ["I cannot do that."]
    _, second, third = oracle.asked["turn"]
    assert '"name": "invalid"' in second.text
    assert "teleport" in second.text
    assert third.text.startswith(second.text.removesuffix("<|im_start|>assistant\n"))
    assert "no such argument" in third.text


def test_a_full_context_is_compacted_and_the_work_goes_on(
    opencode: OpenCode, oracle: Oracle, url: str
) -> None:
    opencode.configure("opencode.json", url, "scripted")
    file = opencode.folder / "long.txt"
    file.write_text("".join(f"line {number} of the file\n" for number in range(800)))
    oracle.turns = [call("read", filePath=str(file)), "Done: it has many lines."]
    events = opencode.run("How long is long.txt?")
    assert [error["name"] for error in errors(events)] == ["ContextOverflowError"]
    assert texts(events)[-1] == "Done: it has many lines."
    assert len(oracle.asked["summary"]) == 1
    assert "## Objective" in oracle.asked["turn"][-1].text  # the summary took the talk's place
    assert all(len(asked.ids) < CONTEXT for asked in oracle.asked["turn"])
