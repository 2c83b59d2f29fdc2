"""A browser without a window, and a server of the page whose engine and answers are scripted."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from mkport.engine.request import Stats
from mkport.trace.trace import Trace
from tests.browser import chromium

OPS = ("rms_norm", "gemm", "attention")


def step_of(tasks: int, workers: int = 2) -> Trace:
    """A made-up step: each task waits 1 us and runs 2 us."""
    at = np.arange(tasks, dtype=np.int32)
    since = 3_000 * (at // workers).astype(np.int64)
    return Trace(
        workers=workers,
        worker=at % workers,
        record=at // workers,
        node=at % len(OPS),
        times=np.stack([since, since + 1_000, since + 3_000], axis=1) + 77,
        nodes=tuple((f"layer 0 / {op}", op) for op in OPS),
        caption="made up by a test",
    )


@dataclass
class FakeEngine:
    """What the page asks of an engine."""

    name: str = "fake <b>model</b>"
    context: int = 4096
    max_batch: int = 8
    told: Stats = field(default_factory=Stats)
    traced: Trace | None = None

    def stats(self) -> Stats:
        return self.told

    def timeline(self) -> Trace | None:
        return self.traced


@dataclass
class Served:
    """A running server: where it is, what it was asked, and what it answers."""

    url: str
    engine: FakeEngine
    asked: list[dict[str, Any]] = field(default_factory=list)
    answers: list[list[Any]] = field(default_factory=list)  # events of each answer to come
    gone: threading.Event = field(default_factory=threading.Event)  # a client left mid-answer


@pytest.fixture
def served() -> Iterator[Served]:
    fastapi = pytest.importorskip("fastapi", reason="the extra serve is not installed")
    uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    from fastapi.responses import StreamingResponse

    from mkport.engine.server import page

    listening = socket.create_server(("127.0.0.1", 0))
    site = Served(f"http://127.0.0.1:{listening.getsockname()[1]}/", FakeEngine())
    app = fastapi.FastAPI()
    app.include_router(page.router(site.engine))  # type: ignore[arg-type]

    async def stream(events: list[Any]) -> AsyncIterator[str]:
        try:
            for event in events:
                if event is None:  # an answer that never comes
                    await asyncio.sleep(60)
                yield f"data: {event if event == '[DONE]' else json.dumps(event)}\n\n"
        except asyncio.CancelledError:
            site.gone.set()
            raise

    async def chat(body: dict[str, Any]) -> StreamingResponse:
        site.asked.append(body)
        return StreamingResponse(stream(site.answers.pop(0)), media_type="text/event-stream")

    app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_model=None)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield site
    server.should_exit = server.force_exit = True
    thread.join()


session_chromium = pytest.fixture(scope="session", name="chromium")(chromium)


class Page:
    """The page in a browser: reads and writes by element id."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def look(self, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Gives the window a size and the reader a preference."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def text(self, selector: str) -> str:
        found = self.js("return document.querySelector(arguments[0])?.innerText", selector)
        return "" if found is None else str(found)

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def send(self, text: str) -> None:
        self.driver.find_element("id", "prompt").send_keys(text, "\n")

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def until(self, true: Callable[[], Any], what: str) -> None:
        """Waits until `true()` holds; fails after 10 s, naming `what`."""
        until = time.monotonic() + 10
        while not true():
            assert time.monotonic() < until, f"not within 10 s: {what}\n{self.text('body')}"
            time.sleep(0.02)

    def complaints(self) -> list[str]:
        """What the browser's console holds against the page."""
        logged = self.driver.get_log("browser")
        return [entry["message"] for entry in logged if entry["level"] in ("SEVERE", "WARNING")]

    def requested(self) -> set[str]:
        """Every address that was asked for since the last call."""
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return {one["request"]["url"] for one in sent}


@pytest.fixture
def page(chromium: Any, served: Served) -> Page:
    opened = Page(chromium)
    opened.complaints(), opened.requested()  # what an earlier test left there
    opened.look()
    chromium.get(served.url)
    return opened
