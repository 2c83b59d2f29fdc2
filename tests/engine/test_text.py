"""An output's text: whole characters, no part of a stop string, the same however tokens cut it."""

import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models

from mkport.engine.text import OutputText, StopStrings, StreamDecoder
from mkport.engine.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


def ids_of(tokenizer: Tokenizer, data: bytes) -> list[int]:
    ids = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size - 2)}
    return [ids[bytes([b])] for b in data]


def run(out: OutputText, ids: list[int]) -> tuple[list[str], int]:
    """The pieces, and how many tokens were taken before a stop string was complete."""
    pieces = []
    for used, token in enumerate(ids, 1):
        pieces.append(out.push(token))
        if out.stopped is not None:
            return [*pieces, out.finish()], used
    return [*pieces, out.finish()], len(ids)


def slow_stop(text: str, stops: list[str]) -> tuple[str, str | None, int]:
    """Character by character: the text before the stop, the stop, characters taken."""
    for end in range(1, len(text) + 1):
        complete = [s for s in stops if text[:end].endswith(s)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop, end
    return text, None, len(text)


short = st.text("abc\n", max_size=30)
stop_lists = st.lists(st.text("abc\n", min_size=1, max_size=5), max_size=5)


@given(text=short, stops=stop_lists)
@example(text="aab", stops=["ab", "aab", "b"])
@example(text="abcabd", stops=["abcabc", "cab"])
def test_a_stop_string_is_found_whole_and_nothing_of_it_is_shown(
    single_bytes: Tokenizer, text: str, stops: list[str]
) -> None:
    out = OutputText(single_bytes, stops)
    pieces, used = run(out, ids_of(single_bytes, text.encode()))
    shown, stop, taken = slow_stop(text, stops)
    assert ("".join(pieces), out.stopped, used) == (shown, stop, taken)
    # what is held back at any time is no more than a stop's beginning
    given_so_far = shown_so_far = ""
    for character, piece in zip(text[:used], pieces, strict=False):
        given_so_far, shown_so_far = given_so_far + character, shown_so_far + piece
        rest = given_so_far[len(shown_so_far) :]
        assert given_so_far.startswith(shown_so_far)
        assert not rest or any(s.startswith(rest) for s in stops)


@given(text=short, stops=stop_lists, cuts=st.lists(st.integers(0, 30), max_size=4))
def test_stops_do_not_depend_on_the_pieces(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    search, base = StopStrings(stops), 0
    shown, stop, taken = slow_stop(text, stops)
    for left, right in zip(edges, edges[1:], strict=False):
        found = search.push(text[left:right])
        if found is not None:
            assert (base + found[0], found[1]) == (taken, stop)
            return
        base = right
    assert stop is None


def test_a_stop_string_may_straddle_tokens_and_sit_inside_one(tmp_path: Path) -> None:
    vocab = {"Hello\u0120EN": 0, "D\u0120and\u0120more": 1, "\u0120END\u0120tail": 2}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    words = Tokenizer.load(tmp_path)
    out = OutputText(words, ["END"])
    assert [out.push(0), out.push(1), out.push(2), out.finish()] == ["Hello ", "", "", ""]
    assert out.stopped == "END"
    out = OutputText(words, ["END"])
    assert [out.push(0), out.push(2), out.push(1)] == ["Hello ", "EN ", ""]
    out = OutputText(words, ["END"])
    assert [out.push(0), out.finish()] == ["Hello ", "EN"] and out.stopped is None


@pytest.mark.parametrize(
    ("min_tokens", "shown"), [(0, ""), (1, "a"), (2, "ab"), (3, "abab"), (4, "abab"), (9, "ababab")]
)
def test_stops_are_not_looked_for_in_the_first_tokens(
    single_bytes: Tokenizer, min_tokens: int, shown: str
) -> None:
    stops = ["ab", "b"] if min_tokens == 1 else ["ab"]
    out = OutputText(single_bytes, stops, min_tokens)
    pieces, _ = run(out, ids_of(single_bytes, b"ababab"))
    assert "".join(pieces) == shown


@given(data=st.binary(max_size=40))
@example(data="🦤é日".encode())
@example(data=b"\xf0\x9f\xa6")
@example(data=b"\xed\xa0\x80\xc3\x28\xe6\x97")
def test_any_bytes_stream_to_what_they_decode_to(single_bytes: Tokenizer, data: bytes) -> None:
    stream = StreamDecoder(single_bytes)
    pieces = [stream.push(token) for token in ids_of(single_bytes, data)]
    assert "".join(pieces) + stream.finish() == single_bytes.decode(ids_of(single_bytes, data))
    assert "".join(pieces).encode(errors="strict") is not None
    assert stream.finish() == ""


def test_a_character_waits_for_its_bytes_and_a_broken_one_does_not_stop_the_rest(
    single_bytes: Tokenizer,
) -> None:
    stream = StreamDecoder(single_bytes)
    dodo = ids_of(single_bytes, "🦤".encode())
    assert [stream.push(t) for t in dodo] == ["", "", "", "🦤"]
    broken = [*dodo[:2], *ids_of(single_bytes, b"ok")]
    assert [stream.push(t) for t in broken] == ["", "", REPLACEMENT + "o", "k"]
    assert stream.push(dodo[0]) == "" and stream.finish() == REPLACEMENT


def test_special_tokens_show_only_when_asked(single_bytes: Tokenizer) -> None:
    begin, end = single_bytes.vocab_size - 2, single_bytes.vocab_size - 1
    ids = [begin, *ids_of(single_bytes, b"hi"), end]
    assert run(OutputText(single_bytes), ids)[0] == ["", "h", "i", "", ""]
    assert run(OutputText(single_bytes, skip_special=False), ids)[0] == [
        "<s>",
        "h",
        "i",
        "</s>",
        "",
    ]
    # a stop string may be a special token's text, if that is shown
    out = OutputText(single_bytes, ["</s>"], skip_special=False)
    assert "".join(run(out, ids)[0]) == "<s>hi" and out.stopped == "</s>"


def test_a_vocabulary_of_pieces_streams_too(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "\u2581Hi": 1, "\u2581you": 2, "s": 3, "<0xC3>": 4, "<0xA9>": 5}
    backend = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    pieces = Tokenizer.load(tmp_path)
    ids = [1, 2, 3, 4, 5, 2]
    stream = StreamDecoder(pieces)
    shown = [stream.push(t) for t in ids]
    assert shown == ["Hi", " you", "s", "", "é", " you"]
    assert "".join(shown) == pieces.decode(ids)


def test_the_cost_is_linear(single_bytes: Tokenizer) -> None:
    stops = ["a" * 400 + "b", *(("a" * k) + "c" for k in range(1, 15))]

    def seconds(length: int) -> float:
        ids = ids_of(single_bytes, b"a" * length)
        best = float("inf")
        for _ in range(3):
            started = time.thread_time()
            run(OutputText(single_bytes, stops), ids)
            best = min(best, time.thread_time() - started)
        return best

    assert seconds(8000) < 8 * seconds(2000)
