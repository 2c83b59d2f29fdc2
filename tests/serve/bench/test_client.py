"""The benchmark's client: it times what arrives, whatever pieces it arrives in."""

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from mkport.engine.bench.serving.client import Ask, _Connection, _read, answer, run


def _event(text: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}\n\n".encode()


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
EVENTS = [
    b": waiting\n\n",
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n' + _event("a"),
    _event("b\n\nc"),
    b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n',
    f'data: {{"choices":[],"usage":{json.dumps(USAGE)}}}\n\ndata: [DONE]\n\n'.encode(),
]
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def _received(raw: bytes, cuts: list[int]) -> _Connection:
    connection = _Connection(Ask({}), 0.5, b"", bytearray(raw))
    connection.marks = [(end, float(number)) for number, end in enumerate([*cuts, len(raw)], 1)]
    return connection


def test_the_answer_is_the_same_wherever_it_was_cut() -> None:
    raw = HEAD + _chunked(EVENTS)
    for cut in range(1, len(raw)):
        sample = answer(_received(raw, [cut]))
        assert (sample.error, sample.text, sample.finish) == ("", "ab\n\nc", "length")
        assert (sample.tokens, sample.prompt_tokens, sample.cached_tokens) == (3, 7, 2)
        first = raw.index(EVENTS[1]) + len(EVENTS[1])
        assert sample.times[0] == (1.0 if cut >= first else 2.0)
    assert sample.first_token_s == 0.5
    assert sample.ended == 2.0


def test_events_may_straddle_chunks_and_lines_may_end_with_a_return() -> None:
    body = b"".join(EVENTS).replace(b"\n", b"\r\n")
    for width in (1, 7, 64):
        parts = [body[at : at + width] for at in range(0, len(body), width)]
        sample = answer(_received(HEAD + _chunked(parts), []))
        assert (sample.error, sample.text) == ("", "ab\n\nc")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "HTTP"),
        (b'HTTP/1.1 503 Busy\r\n\r\n{"error":"full"}', "full"),
        (HEAD + _chunked(EVENTS[:3]), "middle"),
        (HEAD + _chunked([_event("a"), b'data: {"error": {"message": "bad row"}}\n\n']), "bad row"),
    ],
    ids=["nothing", "refused", "cut", "failed"],
)
def test_an_answer_that_fails_is_an_error(raw: bytes, said: str) -> None:
    error = answer(_received(raw, [])).error
    assert error
    assert said in error or not raw


def test_what_another_look_has_taken_is_not_the_end() -> None:
    mine, other = socket.socketpair()
    with mine, other:
        mine.setblocking(False)
        connection = _Connection(Ask({}), 0.0, b"")
        assert _read(mine, connection, 1.0) and not connection.marks
        other.close()
        assert not _read(mine, connection, 2.0)


def test_what_is_read_together_is_known_up_to_the_same_moments() -> None:
    """Two streams of 40 and 60 events, 2 ms apart: each event of the longer one is known to be
    before or after the shorter one's first and last, and there are few reads."""
    listening = socket.create_server(("127.0.0.1", 0))

    def write(count: int, late_s: float) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            time.sleep(late_s)
            connection.sendall(HEAD)
            for at in range(count):
                part = _event(f"{at:02d}")
                connection.sendall(b"%x\r\n%b\r\n" % (len(part), part))
                time.sleep(0.002)
            connection.sendall(_chunked([b"data: [DONE]\n\n"]))

    threads = [threading.Thread(target=write, args=given) for given in ((60, 0.0), (40, 0.03))]
    for thread in threads:
        thread.start()
    with listening:
        asks = [Ask({}, together=1 << 20), Ask({}, together=1 << 20)]
        samples = sorted(run(listening.getsockname(), asks), key=lambda s: s.tokens)
        for thread in threads:
            thread.join()
    short, long = samples
    assert [s.tokens for s in samples] == [40, 60]
    assert short.text == "".join(f"{i:02d}" for i in range(40)) and not short.error
    before = sum(when <= short.times[0] for when in long.times)
    after = sum(when > short.times[-1] for when in long.times)
    assert 2 < before < 30 and len(set(long.times)) <= 5 and len(set(short.times)) <= 4
    assert before + after < 45


@pytest.fixture
def slow() -> Iterator[tuple[tuple[str, int], list[float]]]:
    """A server that answers each connection with two events, 0.1 and 0.2 s after the request."""
    listening = socket.create_server(("127.0.0.1", 0))
    asked: list[float] = []

    def one(sock: socket.socket) -> None:
        with sock:
            sock.recv(1 << 16)
            asked.append(time.perf_counter())
            sock.sendall(HEAD)
            for part in (_event("a"), _event("b") + b"data: [DONE]\n\n"):
                time.sleep(0.1)
                sock.sendall(b"%x\r\n%b\r\n" % (len(part), part))
            sock.sendall(b"0\r\n\r\n")

    def accept() -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listening.getsockname(), asked
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def test_a_closed_loop_keeps_so_many_under_way(slow: tuple[tuple[str, int], list[float]]) -> None:
    address, asked = slow
    began = time.perf_counter()
    samples = run(address, [Ask({}, label=str(i)) for i in range(6)], at_once=2)
    assert 0.6 <= time.perf_counter() - began < 1.1  # three pairs; one by one it would be 1.2
    assert [sample.label for sample in samples] == list("012345")
    for sample in samples:
        assert 0.1 <= sample.first_token_s < 0.3
        assert 0.05 <= sample.gaps[0] < 0.3
        assert (sample.error, sample.tokens) == ("", 2)


def test_an_open_loop_sends_on_time_whatever_the_others_do(
    slow: tuple[tuple[str, int], list[float]],
) -> None:
    address, asked = slow
    times = (0.15, 0.0, 0.1)
    samples = run(address, [Ask({}, at) for at in times])
    for sample, at in zip(samples, times, strict=True):
        assert at <= sample.sent < at + 0.1
    assert samples[0].sent < samples[1].ended  # it did not wait
    assert asked == sorted(asked)
    assert len(asked) == 3


def test_a_request_can_wait_for_others_to_begin(slow: tuple[tuple[str, int], list[float]]) -> None:
    address, _ = slow
    first, second, last = run(address, [Ask({}), Ask({}, 0.05), Ask({}, 0.1, after=2)])
    assert second.times[0] + 0.1 <= last.sent < second.times[0] + 0.3
    assert first.error == second.error == last.error == ""
