"""A server in a process of its own, for what needs signals or a core to itself: `real` is `mkport
serve`, `started` a scripted one, which `python -m tests.serve.process JSON` is."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from mkport.engine.server.lifecycle import bind, serve
from mkport.engine.server.record import log_to_stderr
from mkport.engine.server.settings import Settings
from tests.serve.scripted import Asked, Reply, ScriptedEngine, Wait

ROOT = Path(__file__).parents[2]


def script(asked: Asked) -> Reply:
    """What the last message asks for: "endless", "slow N" (N tokens, 20 ms each), or a greeting."""
    last = asked.text.rsplit("<|im_start|>user\n", 1)[-1].partition("<|im_end|>")[0]
    if last.startswith("endless"):
        return _endless()
    if last.startswith("slow "):
        return (part for _ in range(int(last.split()[1])) for part in ("s", Wait(0.02)))
    return "Hello, world!"


def _endless() -> Iterator[str]:
    while True:
        yield "e"


class Started:
    """The process, and how to talk to it."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url
        self.lines: list[str] = []  # of its stderr
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def ended(self, seconds: float) -> int:
        """Its exit status; fails when it does not end in time."""
        return self.process.wait(seconds)

    def stats(self) -> dict[str, Any]:
        """What /stats says."""
        return dict(httpx.get(f"{self.url}/stats").json())

    def model(self) -> str:
        """The name of the model that it serves."""
        return str(httpx.get(f"{self.url}/v1/models").json()["data"][0]["id"])

    def memory(self) -> int:
        """Bytes that it has resident."""
        status = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(status.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """Files and sockets that it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextlib.contextmanager
def started(engine: dict[str, Any] | None = None, **settings: Any) -> Iterator[Started]:
    """A scripted server with those options."""
    given = json.dumps({"engine": engine or {}, "settings": settings})
    with _running("tests.serve.process", given) as server:
        yield server


@contextlib.contextmanager
def real(*options: str) -> Iterator[Started]:
    """`mkport serve`, by default of the embedded model, with more options."""
    with _running("mkport", "serve", "--port", "0", *options) as server:
        yield server


@contextlib.contextmanager
def _running(*command: str) -> Iterator[Started]:
    """A server, killed at the end if it is still there. Its first line of text holds its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    server = None
    try:
        told = process.stdout.readline()
        url = re.search(r"http://[\w.:]+", told)
        assert url, process.communicate()
        server = Started(process, url[0])
        yield server
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        if server is not None:
            server.reader.join(5)
        process.stderr.close()


def main() -> None:
    """The process."""
    given = json.loads(sys.argv[1])
    listener = bind("127.0.0.1", 0)
    listener.listen()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    log_to_stderr()
    serve(ScriptedEngine(script, **given["engine"]), Settings(**given["settings"]), listener)


if __name__ == "__main__":
    main()
