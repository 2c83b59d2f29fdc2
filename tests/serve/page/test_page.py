"""The page at `/` in a browser: it chats, counts, draws the workers, and asks nobody else."""

import base64
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.engine.request import Stats
from tests.serve.page.conftest import Page, Served, step_of

CODE = "Look:\n\n```python\ndef one():\n    return '<i>1</i>'\n```\n\nThat is <b>all</b>."


def _answer(*pieces: str, **usage: Any) -> list[Any]:
    said = [{"choices": [{"delta": {"content": piece}}]} for piece in pieces]
    first = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    last = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    counted = {"prompt_tokens": 9, "completion_tokens": len(pieces)} | usage
    return [first, *said, last, {"choices": [], "usage": counted}, "[DONE]"]


def test_an_answer_streams_in_and_the_next_question_carries_the_talk(
    page: Page, served: Served
) -> None:
    served.answers += [_answer(*CODE), _answer("Yes.")]
    page.send("Show me")
    page.until(lambda: "9 tokens read" in page.text(".assistant .note"), "the answer's end")
    assert page.text(".assistant pre") == "def one():\n    return '<i>1</i>'"
    assert page.text(".assistant .body").endswith("That is <b>all</b>.")
    page.send("Sure?")
    page.until(lambda: "Yes." in page.text("#log"), "the second answer")
    first, second = served.asked
    assert first["stream"] is True
    assert first["messages"] == [{"role": "user", "content": "Show me"}]
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][1]["content"] == CODE
    assert page.complaints() == []


def test_nothing_is_asked_of_anybody_else(page: Page, served: Served) -> None:
    served.answers.append(_answer("Hello."))
    page.send("Hello")
    page.until(lambda: "Hello." in page.text(".assistant"), "the answer")
    asked = page.requested()
    assert any(url.endswith("/stats") for url in asked)
    strange = {url for url in asked if not url.startswith((served.url, "data:"))}
    assert not strange


def test_stop_ends_the_answer_and_the_request(page: Page, served: Served) -> None:
    served.answers.append([{"choices": [{"delta": {"content": "Once upon"}}]}, None])
    page.send("A story")
    page.until(lambda: "Once upon" in page.text(".assistant"), "the first piece")
    page.click("#send")
    page.until(lambda: page.text(".assistant .note") == "stopped", "the answer's end")
    assert served.gone.wait(5)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([{"error": {"message": "the row went bad"}}], "the row went bad"),
        ([{"choices": [{"delta": {"content": "Half"}}]}], "ended in the middle"),
    ],
)
def test_an_answer_that_fails_says_so(
    page: Page, served: Served, events: list[Any], said: str
) -> None:
    served.answers.append(events)
    page.send("Hello")
    page.until(lambda: said in page.text(".assistant .note"), "the failure's words")


def test_thinking_is_shown_apart(page: Page, served: Served) -> None:
    mused = {"choices": [{"delta": {"reasoning_content": "Hmm."}}]}
    served.answers.append([mused, *_answer("Four.")])
    page.send("2 + 2?")
    page.until(lambda: "Four." in page.text(".assistant"), "the answer")
    assert page.text(".assistant summary") == "thinking"
    assert page.js("return document.querySelector('.assistant details p').textContent") == "Hmm."
    assert page.text(".assistant .text") == "Four."


def test_the_counters_follow_the_engine(page: Page, served: Served) -> None:
    served.engine.told = Stats(
        running=3, waiting=2, kv_usage=0.25, prefix_queries=200, prefix_hits=150, steps=1234
    )
    page.until(lambda: page.text("#steps") == "1,234", "the number of steps")
    shown = [page.text(f"#{name}") for name in ("running", "waiting", "cache", "hits", "model")]
    assert shown == ["3", "2", "25 %", "75 %", "fake <b>model</b>"]
    assert page.text("#state") == "running"


def test_the_timeline_is_the_traced_step(page: Page, served: Served) -> None:
    served.engine.traced = step_of(12)
    served.engine.told = Stats(steps=1)
    page.until(lambda: "12 tasks on 2 workers in 18 µs" in page.text("#step"), "the step's title")
    assert page.text("#caption") == "made up by a test"
    legend = page.text("#legend")
    assert "waiting 33 %" in legend
    assert "gemm 22 %" in legend
    # the middle of worker 0's first task: waiting for a third of it, then the op's colour
    pixel = "return [...lanes.getContext('2d').getImageData(arguments[0], 10, 1, 1).data]"
    wide = page.js("return lanes.width")
    waiting, ran = (page.js(pixel, round(wide * at / 18)) for at in (0.5, 2.0))
    assert waiting[:3] == [0xC9, 0xCE, 0xD4]
    assert "#{:02x}{:02x}{:02x}".format(*ran[:3]) == page.js("return step.colours.rms_norm")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_can_be_read(page: Page, served: Served, width: int, dark: bool) -> None:
    Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    page.look(width, 800, dark)
    served.engine.traced, served.engine.told = step_of(200), Stats(running=1, steps=7)
    served.answers.append(_answer(*CODE.replace("<i>1</i>", "1" * 200)))
    page.send("Show me")
    page.until(lambda: "tokens read" in page.text(".assistant .note"), "the answer's end")
    page.until(lambda: "200 tasks" in page.text("#step"), "the timeline")
    for part in ("document.documentElement", "document.querySelector('#log')"):
        assert page.js(f"return {part}.scrollWidth - {part}.clientWidth") <= 0
    high = page.js("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": high, "scale": 1}
    shot = page.driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    picture = base64.b64decode(shot["data"])
    if folder := os.environ.get("MKPORT_SCREENSHOTS"):
        Path(folder, f"page-{width}-{'dark' if dark else 'light'}.png").write_bytes(picture)
    grey = np.asarray(Image.open(io.BytesIO(picture)).convert("L"), dtype=int)
    paper = int(np.median(grey))
    assert paper < 60 if dark else paper > 200
    assert abs(grey - paper).max() > 150  # ink that stands out from the paper
