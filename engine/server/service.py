"""What all endpoints share: the engine, the settings, the threads, and who is at work right now.

One `Service` a server. It admits requests and remembers their streams, so that a server that stops
can end them; what they do is the endpoints' business.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from mkport.engine.parsers import choose
from mkport.engine.request import EngineLike, QueueFull, Sampling, Stream
from mkport.engine.server.errors import ApiError, busy, invalid
from mkport.engine.server.metrics import Metrics
from mkport.engine.server.settings import Settings
from mkport.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """One prompt for the engine, and how many choices of an answer are wanted."""

    prompt: list[int]  # [ids]
    sampling: Sampling
    n: int = 1
    grammar_of: str | None = None  # the field that the grammar comes from


class Service:
    """The state of a server. Only its event loop's thread touches it."""

    def __init__(self, engine: EngineLike, settings: Settings) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = Metrics(engine)
        self.format = choose(engine.tokenizer.chat_template, settings.format)
        self.created = int(time.time())
        self.draining = False  # no new requests; those at work go on
        self.stopping = False  # those at work are ended too
        self.at_work = 0  # requests between admission and the end of their answer
        self.held = 0  # bytes of bodies that are being read
        self._streams: set[Stream] = set()
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="prepare")
        # a prompt with more characters than this has too many tokens, whatever it says
        self.most_characters = engine.context * engine.tokenizer.longest_token

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs what would hold up the event loop; its errors come back as they are."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(work, *args, **kwargs))

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 for a model that is not served; None or "" is the one there is."""
        if name and name != self.engine.name:
            raise ApiError(
                404,
                f"The model {name[:200]!r} does not exist here; {self.engine.name!r} does.",
                param="model",
                code="model_not_found",
            )

    def alive(self) -> bool:
        """Whether the engine's loop has come round lately."""
        return self.engine.heartbeat_s() < self.settings.dead_s

    @contextmanager
    def work(self) -> Iterator[None]:
        """A request's time at work. Raises ApiError 503 when there are too many, or none are taken
        any more."""
        if self.draining:
            raise busy("The server is shutting down.", "shutting_down", 5)
        if not self.alive():
            raise busy("The engine is dead.", "engine_dead", 30)
        if self.at_work >= self.settings.max_requests:
            raise busy(
                f"{self.at_work} requests are at work, and no more are taken at once. Come back "
                "later.",
                "too_many_requests",
            )
        self.at_work += 1
        try:
            yield
        finally:
            self.at_work -= 1

    def submit(self, works: Sequence[Work]) -> list[Stream]:
        """Hands prompts to the engine, all or none; call it in a thread: grammars are compiled.

        Raises ApiError when one is refused. Whoever gets the streams calls `hold` and `release`.
        """
        streams: list[Stream] = []
        try:
            for work in works:
                streams.append(self.engine.submit(work.prompt, work.sampling, work.n))
            return streams
        except UserError as error:
            reason = str(error).partition("\n")[0]  # what follows is the grammar itself
            failure = invalid(reason, work.grammar_of)
        except QueueFull as full:
            failure = busy("Too many requests are waiting.", "queue_full", full.retry_s)
        for stream in streams:
            stream.cancel()
        raise failure

    def hold(self, streams: Iterable[Stream]) -> None:
        """Remembers streams, to end them when the server stops."""
        self._streams.update(streams)

    def release(self, streams: Iterable[Stream]) -> None:
        """Ends streams that have not ended, and forgets them."""
        for stream in streams:
            self._streams.discard(stream)
            stream.cancel()

    def stop(self) -> None:
        """Ends every request at work with an error of its own."""
        self.draining = self.stopping = True
        for stream in self._streams:
            stream.cancel()

    def close(self) -> None:
        """Lets go of the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
