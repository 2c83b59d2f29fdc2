"""Which replica a request goes to."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkport.engine.affinity import KEPT, PIECE, SLACK, Affinity, chain_of


def _talk(*texts: str, **fields: object) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages} | fields).encode()


def test_a_follow_up_goes_where_the_talk_began() -> None:
    affinity = Affinity[int]()
    first = chain_of(_talk("a" * 3000))
    affinity.sent(2, first)
    follow_up = chain_of(_talk("a" * 3000, "b" * 1000, temperature=0.5))
    assert affinity.choose(follow_up, {0: 0, 1: 0, 2: SLACK}) == 2
    assert affinity.choose(follow_up, {0: 0, 1: 0, 2: SLACK + 1}) == 0  # too busy
    assert affinity.choose(follow_up, {0: 1, 1: 1}) == 0  # it is not there


def test_a_strange_request_goes_to_the_least_busy() -> None:
    affinity = Affinity[int]()
    affinity.sent(0, chain_of(_talk("a" * 3000)))
    assert affinity.choose(chain_of(_talk("b" * 3000)), {0: 1, 1: 2, 2: 0}) == 2
    assert affinity.choose([], {0: 1, 1: 0, 2: 0}) == 1


def test_the_same_text_behind_another_beginning_is_no_prefix() -> None:
    one, other = (chain_of(_talk(start * PIECE + "same" * PIECE)) for start in "ab")
    assert not set(one) & set(other)


def test_a_replica_that_starts_anew_has_nothing() -> None:
    affinity, chain = Affinity[int](), chain_of(_talk("a" * 3000))
    affinity.sent(0, chain)
    assert affinity.shared(0, chain) == len(chain) > 5
    affinity.forget(0)
    assert affinity.shared(0, chain) == 0


def test_memory_is_bounded_and_beginnings_stay() -> None:
    affinity, long = Affinity[int](), KEPT * 3 // 4
    chains = [[hash((talk, piece)) for piece in range(long)] for talk in range(2)]
    for chain in chains:
        affinity.sent(0, chain)
    assert len(affinity._seen[0]) == KEPT
    assert [affinity.shared(0, chain) for chain in chains] == [KEPT - long, long]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"3", b'{"prompt": null}', b'{"messages": 3}', b"\xff", b"[" * 99999]
)
def test_a_body_that_is_no_request_has_no_prefix(body: bytes) -> None:
    assert chain_of(body) == []


@given(st.text(min_size=PIECE), st.text())
def test_a_longer_prompt_continues_the_chain(prompt: str, more: str) -> None:
    one, longer = (
        chain_of(json.dumps({"prompt": text}).encode()) for text in (prompt, prompt + more)
    )
    assert longer[: len(one)] == one
