"""A server on a free port in a thread of the test's own process, and what tests ask it."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai

from mkport.engine.request import EngineLike
from mkport.engine.server.lifecycle import Server, bind, config_for
from mkport.engine.server.service import Service
from mkport.engine.server.settings import Settings


@dataclass
class Live:
    """A running server."""

    url: str
    server: Server
    service: Service
    engine: Any
    http: httpx.Client

    def client(self, key: str = "none", **options: Any) -> openai.OpenAI:
        """The `openai` client, which does not try again by itself."""
        options = {"max_retries": 0, "timeout": 20, "http_client": self.http, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """A POST of JSON."""
        return self.http.post(f"{self.url}{path}", json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """A GET."""
        return self.http.get(f"{self.url}{path}", **options)

    def chat(self, text: str = "Hi", **fields: Any) -> httpx.Response:
        """One message, not streamed unless asked for."""
        return self.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields}
        )

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream as objects, "[DONE]" as text."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return events_of(response.text)


def events_of(text: str) -> list[Any]:
    """The events in the body of a stream."""
    assert text.endswith("\n\n")
    found: list[Any] = []
    for block in text[:-2].split("\n\n"):
        if not block.startswith(":"):
            assert block.startswith("data: ") and "\n" not in block, block
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


@contextlib.contextmanager
def serving(engine: EngineLike, **settings: Any) -> Iterator[Live]:
    """A server of that engine, as long as the block lasts; the engine is closed with it."""
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config, service = config_for(engine, Settings(**settings))
    server = Server(config, service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        with httpx.Client(timeout=20, verify=False) as http:
            yield Live(f"http://127.0.0.1:{port}", server, service, engine, http)
    finally:
        server.handle_exit(2, None)
        server.handle_exit(2, None)
        thread.join(10)
        engine.close()
        assert not thread.is_alive()


@contextlib.contextmanager
def asking(url: str, **fields: Any) -> Iterator[socket.socket]:
    """A connection with a chat request on it; leaving the block hangs up."""
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.settimeout(10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        yield connection


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Waits for a condition, and fails when it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
