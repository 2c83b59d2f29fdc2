"""What recipes use beside the library: a timeline to look at, and the command that proves a stage.

In a notebook a picture shows itself; run as a script, a recipe writes it to `out/recipes`.
"""

import contextlib
import importlib.util
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from mkport.files import make_folder
from mkport.trace import Trace, draw
from mkport.trace.sketch import sketch

OUT = Path("out/recipes")
MANY = 120  # tasks that are drawn one by one: a page of the course stays below 100 KB
START_S = 120.0  # for a server to come up, with a first compilation


class Picture:
    """An SVG that notebooks show by themselves."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg


def show(
    trace: Trace, name: str, title: str | None = None, last_ns: int | None = None
) -> Picture | None:
    """Draws a trace, up to `last_ns` after its beginning if that is given.

    In a script the picture is written to out/recipes/`name`.svg; without matplotlib it is printed
    in characters. The caption, which says whether it was measured or simulated, is the trace's own.
    """
    if importlib.util.find_spec("matplotlib") is None:
        print(sketch(trace))
        return None
    file = make_folder(OUT) / f"{name}.svg"
    draw(trace, file, title=title, last_ns=last_ns, many=MANY)
    if "ipykernel" in sys.modules:
        return Picture(file.read_text(encoding="utf-8"))
    print(f"picture: {file}")
    return None


def prove(command: str) -> str:
    """Runs a command of mkport, prints what it says, and returns it.

    Raises AssertionError when it does not end with 0.
    """
    words = shlex.split(command)
    assert words[0] == "mkport", "a proof is a command of mkport"
    print(f"$ {command}")
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, encoding="utf-8"
    )
    print((done.stdout + done.stderr).strip())
    assert done.returncode == 0, f"{command} ended with {done.returncode}"
    return done.stdout


@contextlib.contextmanager
def served(command: str) -> Iterator[str]:
    """Runs `mkport serve ...` as long as the block lasts; yields the server's address.

    Raises AssertionError when the server does not come up, or does not end as it was told to.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    print(f"$ {command} --port {port}")
    words = [*shlex.split(command), "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while not _ready(url):
            assert server.poll() is None, f"{command} ended with {server.returncode}"
            assert time.monotonic() < deadline, f"{command} is not ready after {START_S:.0f} s"
            time.sleep(0.1)
        yield url
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
