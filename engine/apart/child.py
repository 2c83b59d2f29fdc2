"""The process in which an engine's loop runs for another one: orders come in, events go out, one
message a step.

    python -m mkport.engine.apart.child FD

It is started by `loop`, and ends when that end of the pipe is closed.
"""

import contextlib
import pickle
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import astuple, fields
from multiprocessing.connection import Connection
from typing import Any, cast

from mkport.engine.engine import Engine
from mkport.engine.request import Event, Grammar, QueueFull
from mkport.engine.stream import EventStream
from mkport.errors import UserError

BEAT_S = 0.25
FIELDS = tuple(field.name for field in fields(Event))
UNBOUNDED = 1 << 30  # how many may wait is the other side's business


class Relay:
    """Stands where an event loop would: told of streams with events, it sends these."""

    def __init__(self, say: Callable[..., None], engine: Engine) -> None:
        self._say, self._engine = say, engine
        self._keys: dict[EventStream, int] = {}
        self._accepted: set[EventStream] = set()  # whose prompts the other side knows to be run

    def add(self, key: int, prompt: list[int], sampling: Any, n: int) -> None:
        """Queues a request of the other side: `n` choices after `prompt` [tokens]. Raises UserError
        or QueueFull."""
        job = self._engine.job(prompt, sampling, n)
        self._keys[job.stream] = key
        job.stream.loop = cast(Any, self)
        try:
            self._engine.add(job)
        except QueueFull:
            del self._keys[job.stream]
            raise

    def cancel(self, key: int) -> None:
        """Ends a request, if it has not ended."""
        for stream in [stream for stream, number in self._keys.items() if number == key]:
            stream.cancel()

    def call_soon_threadsafe(self, call: object, streams: Sequence[EventStream]) -> None:
        """Sends what a step has put into streams."""
        news = []
        for stream in streams:
            accepted = None
            if stream.accepted is not None and stream not in self._accepted:
                self._accepted.add(stream)
                accepted = stream.accepted
            events = [tuple(getattr(event, name) for name in FIELDS) for event in stream.drain()]
            news.append((self._keys[stream], accepted, events))
            if stream.ended:
                del self._keys[stream]
                self._accepted.discard(stream)
        self._say("events", news, self._engine.stats())

    def refuse(self, key: int, n: int, message: str) -> None:
        """Ends a request that could not be queued."""
        events = [astuple(Event(choice, reason="error", error=message)) for choice in range(n)]
        self._say("events", [(key, None, events)], self._engine.stats())


def main() -> None:
    """Builds, says so, and does what it is told."""
    pipe, lock = Connection(int(sys.argv[1])), threading.Lock()

    def say(*message: Any) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with lock:
            try:
                pipe.send_bytes(data)
            except OSError:  # nobody is there: the end of the pipe will be read soon
                pass

    _, build, options = pickle.loads(pipe.recv_bytes())
    try:
        built = build(**options)
    except UserError as error:
        return say("refused", str(error))
    except BaseException:
        return say("failed", traceback.format_exc())
    with Engine.over(built.runner, built.tokenizer, built.name, built.vocab, UNBOUNDED) as engine:
        about = {"name": built.name, "context": engine.context, "max_batch": engine.max_batch}
        say("built", about)
        over = threading.Event()
        beats = threading.Thread(target=_beat, args=(say, engine, over), daemon=True)
        beats.start()
        # the first grammar of all takes seconds, during which no order would be read
        threading.Thread(target=_first_grammar, args=(engine,), daemon=True).start()
        _obey(pipe, say, engine)
        over.set()
    say("closed", "The engine is closed.")


def _obey(pipe: Connection, say: Callable[..., None], engine: Engine) -> None:
    """Orders, until the one to close or the end of the pipe."""
    relay = Relay(say, engine)
    while True:
        try:
            order, *what = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        if order == "add":
            key, prompt, sampling, n = what
            try:
                relay.add(key, prompt, sampling, n)
            except Exception as error:  # whatever is wrong with it must not end the others
                relay.refuse(key, n, f"The request could not be queued: {error!r}")
        elif order == "cancel":
            relay.cancel(*what)
        elif order == "reset":
            engine.reset_prefix_cache()
        elif order == "trace":
            trace = engine.timeline()
            if trace is not None:
                say("trace", trace)
        elif order == "close":
            engine.close(*what)
            return


def _first_grammar(engine: Engine) -> None:
    with contextlib.suppress(UserError):  # where there is no library for grammars
        engine.grammars.matcher(Grammar("regex", "a"))


def _beat(say: Callable[..., None], engine: Engine, over: threading.Event) -> None:
    while not over.wait(BEAT_S):
        say("beat", engine.heartbeat_s(), engine.stats())


if __name__ == "__main__":
    main()
