"""Watches, from a process of its own, how soon servers answer GET /health.

`watching(urls)` starts it; `python -m tests.serve.watch URL...` is it: it asks all of them in turns
until its stdin closes, and then prints their times as JSON.
"""

import contextlib
import http.client
import json
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
EVERY_S = 0.004


class Watch:
    """What was seen, once the block is over: seconds from question to answer, by server."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.bad = 0

    def p99(self, url: str) -> float:
        """The 99th percentile of a server's times, in seconds."""
        assert len(self.times[url]) >= 50, len(self.times[url])
        return statistics.quantiles(self.times[url], n=100)[-1]


@contextlib.contextmanager
def watching(*urls: str) -> Iterator[Watch]:
    """Watches as long as the block lasts."""
    command = [sys.executable, "-m", "tests.serve.watch", *urls]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # it has begun
    watch = Watch()
    try:
        yield watch
    finally:
        told, _ = process.communicate("", timeout=30)
        watch.times, watch.bad = json.loads(told)


def main() -> None:
    """The process."""
    times: dict[str, list[float]] = {url: [] for url in sys.argv[1:]}
    bad = 0
    connections = {
        url: http.client.HTTPConnection(url.removeprefix("http://"), timeout=20) for url in times
    }
    print("begun", flush=True)
    while not select.select([sys.stdin], [], [], EVERY_S)[0]:
        for url, connection in connections.items():
            began = time.perf_counter()
            connection.request("GET", "/health")
            response = connection.getresponse()
            response.read()
            times[url].append(time.perf_counter() - began)
            bad += response.status != 200
    print(json.dumps([times, bad]))


if __name__ == "__main__":
    main()
