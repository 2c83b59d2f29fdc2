"""The servers that are measured: each a process on a free port, started, awaited, ended.

What is asked of them is in `experiments`. A server that cannot run here is left out by name, with
the reason.
"""

import importlib.metadata
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mkport.engine.child import prepare

READY_S = 240.0
LLAMA_CPP_NEEDS = ("llama_cpp", "fastapi", "uvicorn", "sse_starlette", "starlette_context")
TRANSFORMERS_NEEDS = ("transformers", "torch", "fastapi", "uvicorn")


PORT = "{port}"  # in a command: filled in when the server is started


class CannotRun(Exception):
    """Why a server takes no part."""


@dataclass(frozen=True)
class Plan:
    """How one server is started."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...]  # modules
    packages: tuple[str, ...]  # whose versions the report tells
    ready: str  # the path that answers 200 when it can be asked
    model: str  # its name in requests
    extra: dict[str, Any] = field(default_factory=dict)  # fields of every request


@dataclass(frozen=True)
class Server:
    """A running server."""

    plan: Plan
    address: tuple[str, int]
    process: subprocess.Popen[bytes]

    @property
    def versions(self) -> dict[str, str]:
        """The versions of what it is made of."""
        return {name: importlib.metadata.version(name) for name in self.plan.packages}

    def body(self, messages: list[dict[str, str]], tokens: int) -> dict[str, Any]:
        """A streaming, greedy request that writes so many tokens."""
        named = {"model": self.plan.model} if self.plan.model else {}
        return named | {
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": tokens,
            **self.plan.extra,
        }


def mkport(directory: Path, batch: int, context: int) -> Plan:
    """This project's server, for `batch` sequences of `context` positions."""
    options = ("--max-batch", str(batch), "--max-model-len", str(context))
    command = (sys.executable, "-m", "mkport", "serve", "--model", str(directory), *options)
    return Plan(
        "mkport",
        (*command, "--host", "127.0.0.1", "--port", PORT),
        ("fastapi", "uvicorn"),
        ("numba", "numpy", "fastapi", "uvicorn"),
        "/ready",
        "",
        {"ignore_eos": True},
    )


def llama_cpp(gguf: Path, threads: int, context: int) -> Plan:
    """`llama-cpp-python`'s own server, on the same weights in bfloat16, with a `context` of so many
    positions."""
    return Plan(
        "llama.cpp",
        (
            sys.executable, "-m", "llama_cpp.server", "--model", str(gguf),
            "--n_ctx", str(context), "--n_threads", str(threads),
            "--n_threads_batch", str(threads),
            # else a second request would cut the first one short
            "--interrupt_requests", "false",
            "--host", "127.0.0.1", "--port", PORT,
        ),
        LLAMA_CPP_NEEDS,
        ("llama-cpp-python",),
        "/v1/models",
        "",
    )  # fmt: skip


def transformers(directory: Path, batching: bool) -> Plan:
    """`transformers serve`, with continuous batching or without."""
    flag = "--continuous-batching" if batching else "--no-continuous-batching"
    program = str(Path(sys.executable).with_name("transformers"))
    return Plan(
        "transformers" + (" batching" if batching else ""),
        (
            program, "serve", str(directory), "--device", "cpu", "--dtype", "bfloat16", flag,
            "--host", "127.0.0.1", "--port", PORT,
        ),
        TRANSFORMERS_NEEDS,
        ("transformers", "torch"),
        "/health",
        str(directory),
    )  # fmt: skip


@contextmanager
def running(plan: Plan) -> Iterator[Server]:
    """The server, ready, as long as the block lasts. Raises CannotRun with its last words."""
    lacking = [name for name in plan.needs if importlib.util.find_spec(name) is None]
    if lacking:
        raise CannotRun(f"not installed: {', '.join(lacking)}")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [str(port) if part == PORT else part for part in plan.command]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=prepare(),
        )
        try:
            _await(process, f"http://127.0.0.1:{port}{plan.ready}", log)
            yield Server(plan, ("127.0.0.1", port), process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its own session, so nobody else's
                process.wait()


def _await(process: subprocess.Popen[bytes], url: str, log: Any) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    log.seek(0)
    words = log.read().decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    raise CannotRun(f"it did not become ready: {words[0][:300]}")
