"""A client that costs little: raw sockets, one thread, and no parsing while the clock runs.

Each request has a connection of its own. What arrives is kept as bytes with the time of each read;
`answer` makes sense of it afterwards. Which requests there are is the experiments' business.
"""

import json
import selectors
import socket
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

READ = 1 << 16
GIVE_UP_S = 600.0  # without a byte from anybody


@dataclass(frozen=True)
class Ask:
    """One request to send."""

    body: dict[str, Any]
    at: float = 0.0  # seconds after the run began, before which it is not sent
    after: int = 0  # or after so many other requests have had text
    label: str = ""
    path: str = "/v1/chat/completions"
    together: int = 1  # bytes that are read together, after the first text: a client on the same
    # machine takes its time from the server


@dataclass
class Sample:
    """What became of one request. Times in seconds after the run began."""

    label: str
    sent: float
    times: list[float] = field(default_factory=list)  # [events that carried text]
    ended: float = 0.0
    text: str = ""
    tokens: int = 0  # written; by the server's own count where it tells
    prompt_tokens: int = 0
    cached_tokens: int = 0
    finish: str = ""
    error: str = ""

    @property
    def first_token_s(self) -> float:
        """Seconds from when it was sent to its first text."""
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """The seconds between events that carried text: [events - 1]."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


@dataclass
class _Connection:
    ask: Ask
    sent: float
    out: bytes
    read: bytearray = field(default_factory=bytearray)
    marks: list[tuple[int, float]] = field(default_factory=list)  # bytes so far, when
    begun: bool = False  # an event has come


def run(
    address: tuple[str, int],
    asks: Sequence[Ask],
    at_once: int | None = None,
    advance: Callable[[float], None] = lambda amount: None,
) -> list[Sample]:
    """Sends requests and waits for all answers; samples in the order of `asks`.

    Open loop: each request goes out at its `at`, whatever the others' answers do; one with `after`
    so long after so many others have begun to answer. With `at_once` the loop is
    closed: in order, and no more than so many under way. Raises TimeoutError when nothing comes.
    """
    due = {index: ask.at for index, ask in enumerate(asks) if not ask.after}
    held = {index: ask for index, ask in enumerate(asks) if ask.after}
    waiting = sorted(due, key=lambda index: due[index])[::-1]
    samples: dict[int, Sample] = {}
    under_way = begun = 0
    with selectors.DefaultSelector() as selector:
        began = heard = time.perf_counter()
        while waiting or under_way:
            now = time.perf_counter() - began
            for index in [index for index, ask in held.items() if ask.after <= begun]:
                due[index] = now + held.pop(index).at
                waiting = sorted([*waiting, index], key=lambda index: due[index])[::-1]
            while waiting and due[waiting[-1]] <= now and under_way < (at_once or len(asks)):
                index = waiting.pop()
                _open(selector, address, asks[index], index, began)
                under_way += 1
            room = waiting and under_way < (at_once or len(asks))
            idle_s = due[waiting[-1]] - now if room else GIVE_UP_S
            for key, events in selector.select(max(idle_s, 0.0)):
                heard = time.perf_counter()
                index, connection = key.data
                sock: Any = key.fileobj
                if events & selectors.EVENT_WRITE:
                    _write(selector, sock, index, connection)
                    continue
                silent = not connection.begun
                goes_on = _read(sock, connection, heard - began)
                begun += silent and connection.begun
                if connection.ask.together > 1:  # all are known up to the same moments
                    _look(selector, heard - began)
                if not goes_on:
                    selector.unregister(sock)
                    sock.close()
                    under_way -= 1
                    samples[index] = answer(connection)
                    advance(1)
            if time.perf_counter() - heard > GIVE_UP_S:
                raise TimeoutError(f"{under_way} requests had no byte for {GIVE_UP_S:.0f} s")
    return [samples[index] for index in range(len(asks))]


def _open(
    selector: selectors.BaseSelector, address: tuple[str, int], ask: Ask, index: int, began: float
) -> None:
    body = json.dumps(ask.body).encode()
    head = (
        f"POST {ask.path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
        "Content-Type: application/json\r\nAccept: text/event-stream\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    sent = time.perf_counter() - began
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    connection = _Connection(ask, sent, head.encode() + body)
    selector.register(sock, selectors.EVENT_WRITE, (index, connection))


def _write(
    selector: selectors.BaseSelector, sock: socket.socket, index: int, c: _Connection
) -> None:
    c.out = c.out[sock.send(c.out) :]
    if not c.out:
        selector.modify(sock, selectors.EVENT_READ, (index, c))


def _read(sock: socket.socket, connection: _Connection, now: float) -> bool:
    """Takes what has arrived; False at the end of the answer."""
    try:
        got = sock.recv(READ)
    except BlockingIOError:  # a look at all connections has taken it since
        return True
    except ConnectionError:
        got = b""
    connection.read += got
    if not connection.begun and b"data:" in got:
        connection.begun = True
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, connection.ask.together)
    connection.marks.append((len(connection.read), now))
    return bool(got)


def answer(connection: _Connection) -> Sample:
    """What the bytes of one connection say, and when."""
    sample = Sample(connection.ask.label, connection.sent, ended=connection.marks[-1][1])
    head, _, body = bytes(connection.read).partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    if " 200" not in status:
        sample.error = f"{status}: {body[:300].decode(errors='replace')}"
        return sample
    chunked = any(line.lower().replace(" ", "") == "transfer-encoding:chunked" for line in lines)
    parts = _chunks(body, len(head) + 4) if chunked else [(len(connection.read), body)]
    reached = [mark for mark, _ in connection.marks]
    rest, done = b"", False
    for end, part in parts:
        when = connection.marks[min(bisect_left(reached, end), len(reached) - 1)][1]
        *events, rest = (rest + part).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            if event.startswith(b"data:"):
                data = event[5:].strip()
                done = done or data == b"[DONE]"
                if data != b"[DONE]":
                    _take(sample, json.loads(data), when)
    if not (done or sample.finish or sample.error):
        sample.error = "the answer ended in its middle"
    sample.tokens = sample.tokens or len(sample.times)
    return sample


def _look(selector: selectors.BaseSelector, now: float) -> None:
    """Takes what has arrived on connections that are read together."""
    for key in list(selector.get_map().values()):
        _, connection = key.data
        if connection.begun and connection.ask.together > 1:
            sock: Any = key.fileobj
            while got := _there(sock):
                connection.read += got
                connection.marks.append((len(connection.read), now))


def _there(sock: socket.socket) -> bytes:
    """What has arrived, if anything; an end is left to be seen by whoever waits."""
    try:
        return sock.recv(READ, socket.MSG_DONTWAIT)
    except (BlockingIOError, ConnectionError):
        return b""


def _chunks(body: bytes, offset: int) -> list[tuple[int, bytes]]:
    """The parts of a chunked body, each with the place in the stream at which it was complete."""
    found, at = [], 0
    while (line := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:line].split(b";")[0] or b"0", 16)
        if size == 0:
            break
        found.append((offset + line + 2 + size, body[line + 2 : line + 2 + size]))
        at = line + 4 + size
    return found


def _take(sample: Sample, event: dict[str, Any], when: float) -> None:
    if "error" in event:
        sample.error = str(event["error"])
    if usage := event.get("usage"):
        sample.tokens = usage.get("completion_tokens") or 0
        sample.prompt_tokens = usage.get("prompt_tokens") or 0
        sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    for choice in event.get("choices") or ():
        if text := (choice.get("delta") or choice).get("content") or choice.get("text"):
            sample.text += text
            sample.times.append(when)
        sample.finish = choice.get("finish_reason") or sample.finish
