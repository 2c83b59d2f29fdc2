"""Several server processes on this machine behind one endpoint: started, watched, restarted.

One process is one replica, with a port of its own on the loopback interface and its share of the
cores. Which of them a request goes to is the `router`'s business.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import httpx
import uvicorn

from mkport.engine.child import prepare
from mkport.engine.router import Replica, Router
from mkport.engine.server.connection import Connection
from mkport.engine.server.lifecycle import BACKLOG, bind, url_of
from mkport.engine.server.settings import Settings
from mkport.errors import UserError

log = logging.getLogger("mkport.replicas")

LOOPBACK = "127.0.0.1"
POLL_S = 0.2  # while a replica starts
WATCH_S = 2.0  # between two looks at a replica that runs
DEAF = 5  # looks in a row without a good answer, after which it is ended and started again
START_S = 600.0  # loading a large model and compiling its step
BACKOFF_S = (0.5, 30.0)  # before the first restart in a row, and at most
STEADY_S = 60.0  # after so long a restart is the first in a row again
DRAIN_S = 30.0  # what running requests have left at the end
SETTINGS = Settings()  # those of every server

Command = Callable[[int], Sequence[str]]  # a port to the command line of a replica


def serve(
    replicas: int,
    host: str,
    port: int,
    arguments: Sequence[str],
    told: Callable[[str], object] = lambda address: None,
) -> None:
    """Serves until SIGTERM or SIGINT: `mkport serve --replicas`.

    `arguments` are the options of `mkport serve` for each replica, without host, port and replicas;
    `told` is called with the URL once one of them can be asked.
    Raises UserError when the address is taken or a replica cannot start.
    """

    def command(at: int) -> list[str]:
        where = ["--host", LOOPBACK, "--port", str(at)]
        return [sys.executable, "-m", "mkport", "serve", *arguments, *where]

    with bind(host, port) as listening:
        listening.listen(BACKLOG)
        ready = partial(told, url_of(listening))
        asyncio.run(run(replicas, command, listening, ready))


async def run(
    replicas: int,
    command: Command,
    listening: socket.socket,
    ready: Callable[[], object] = lambda: None,
    settings: Settings = SETTINGS,
) -> None:
    """Serves on a socket until a signal comes; see `serve`. `ready` is called when it can."""
    rows = [Replica(index) for index in range(replicas)]
    router = Router(rows, settings)
    server = _Server(
        uvicorn.Config(
            router,
            http=partial(Connection, settings=settings),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=int(DRAIN_S),
        )
    )
    loop = asyncio.get_running_loop()
    telling = loop.create_task(_tell(router, ready))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    serving = loop.create_task(server.serve(sockets=[listening]))
    watchers = [
        loop.create_task(_keep(row, router, command, cores))
        for row, cores in zip(rows, _shares(replicas), strict=True)
    ]
    try:
        done, _ = await asyncio.wait({serving, *watchers}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True  # a watcher ends by an error only
        await serving
    finally:
        for task in (telling, *watchers):
            task.cancel()
        await asyncio.gather(telling, *watchers, return_exceptions=True)
        await router.close()
    for task in done:
        task.result()


async def _tell(router: Router, ready: Callable[[], object]) -> None:
    await router.some_ready()
    ready()


class _Server(uvicorn.Server):
    """A server that leaves signals to whoever runs it: replicas end after their requests."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Installs nothing."""
        yield

    def stop(self) -> None:
        """Lets requests finish; called again, ends them."""
        self.force_exit = self.should_exit
        self.should_exit = True


async def _keep(row: Replica, router: Router, command: Command, cores: set[int]) -> None:
    """Keeps one replica running. Raises UserError when it refuses to start (exit code 2)."""
    wait_s = BACKOFF_S[0]
    while True:
        port = _free_port()
        process = await asyncio.create_subprocess_exec(
            *command(port),
            stdout=asyncio.subprocess.DEVNULL,  # which tells an address that is nobody's to use
            start_new_session=True,  # Ctrl-C is for this process, which lets requests finish first
            preexec_fn=prepare(cores),
        )
        began = asyncio.get_running_loop().time()
        try:
            came = await _watch(row, router, process, f"http://{LOOPBACK}:{port}")
        finally:
            router.down(row)
            await _end(process)
        if process.returncode == 2 and not came:
            raise UserError(f"Replica {row.index} cannot start: its own message stands above.")
        if asyncio.get_running_loop().time() - began > STEADY_S:
            wait_s = BACKOFF_S[0]
        log.warning("replica %d ended with %s; restarting", row.index, process.returncode)
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, BACKOFF_S[1])
        row.restarts += 1


async def _watch(
    row: Replica, router: Router, process: asyncio.subprocess.Process, url: str
) -> bool:
    """Returns when the process has ended or ought to; whether it was ready once."""
    ended = asyncio.ensure_future(process.wait())
    loop = asyncio.get_running_loop()
    deadline, deaf = loop.time() + START_S, 0
    async with httpx.AsyncClient(trust_env=False, timeout=WATCH_S) as client:
        while not ended.done():
            path = "/health" if row.ready else "/ready"
            try:
                good = (await client.get(url + path)).status_code == 200
            except httpx.HTTPError:
                good = False
            deaf = 0 if good else deaf + 1
            if good and not row.ready:
                router.up(row, url)
            if (row.ready and deaf >= DEAF) or (not row.ready and loop.time() > deadline):
                log.warning("replica %d does not answer", row.index)
                ended.cancel()
                return row.ready
            await asyncio.wait({ended}, timeout=WATCH_S if row.ready else POLL_S)
    return row.ready


async def _end(process: asyncio.subprocess.Process) -> None:
    """Asks a process to end, and makes it."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), DRAIN_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def _shares(replicas: int) -> list[set[int]]:
    """The cores of each replica: equal parts; shared when there are fewer cores than replicas."""
    if not hasattr(os, "sched_getaffinity"):
        return [set()] * replicas
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < replicas:
        return [{cores[index % len(cores)]} for index in range(replicas)]
    bounds = [index * len(cores) // replicas for index in range(replicas + 1)]
    return [set(cores[first:last]) for first, last in zip(bounds, bounds[1:], strict=False)]


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
