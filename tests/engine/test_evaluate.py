"""Perplexity is what its definition says, whatever the steps' width."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mkport.engine.evaluate import CORPUS, perplexity
from mkport.errors import UserError

VOCAB = 11


class FakeDecoder:
    """Logits that depend on the position and the token alone; it checks what it is asked."""

    def __init__(self, chunk: int, context: int = 64) -> None:
        self.chunk, self.context = chunk, context
        self.table = np.random.default_rng(0).standard_normal((context, VOCAB, VOCAB)) * 3
        self.next = 0

    def step(self, tokens: Any, wanted: Any) -> tuple[None, np.ndarray]:
        assert list(wanted) == list(range(len(tokens))) and len(tokens) <= self.chunk
        assert {sequence for sequence, _, _ in tokens} == {0}
        positions = [position for _, position, _ in tokens]
        assert positions == list(range(positions[0], positions[0] + len(tokens)))
        assert positions[0] in (0, self.next)
        self.next = positions[-1] + 1
        return None, np.stack([self.table[p, t] for _, p, t in tokens]).astype(np.float32)


def _by_definition(decoder: FakeDecoder, ids: list[int], window: int) -> float:
    losses = []
    for first in range(0, len(ids), window):
        part = ids[first : first + window]
        for position in range(len(part) - 1):
            row = decoder.table[position, part[position]].astype(np.float32).astype(np.float64)
            share = np.exp(row) / np.exp(row).sum()
            losses.append(-np.log(share[part[position + 1]]))
    return float(np.exp(np.mean(losses)))


@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
@pytest.mark.parametrize("length", [2, 16, 17, 18, 40])
def test_perplexity_is_its_definition(chunk: int, length: int) -> None:
    ids = np.random.default_rng(length).integers(0, VOCAB, length).tolist()
    decoder: Any = FakeDecoder(chunk)
    seen: list[int] = []
    found = perplexity(decoder, ids, 16, seen.append)
    assert found.perplexity == pytest.approx(_by_definition(decoder, ids, 16), rel=1e-12)
    last = length % 16
    assert found.windows == length // 16 + (last > 1)
    assert found.predicted == length - -(-length // 16)
    assert sum(seen) == length - (last == 1)


def test_logits_that_are_not_finite_are_refused() -> None:
    decoder: Any = FakeDecoder(8)
    decoder.table[1, :, 4] = np.nan
    with pytest.raises(UserError, match="not finite"):
        perplexity(decoder, [1, 2, 3], 16)


@pytest.mark.parametrize(
    ("ids", "window", "message"),
    [([1], 16, "at least two"), ([1, 2], 1, "window of 1"), ([1, 2], 65, "2 to 64")],
)
def test_what_predicts_nothing_is_refused(ids: list[int], window: int, message: str) -> None:
    decoder: Any = SimpleNamespace(context=64, chunk=8)
    with pytest.raises(UserError, match=message):
        perplexity(decoder, ids, window)


def test_the_bundled_text_is_there() -> None:
    text = CORPUS.read_text(encoding="utf-8")
    assert 2000 < len(text.split()) < 3000
    assert text.startswith("CHAPTER I") and text.endswith("the cake.\n")
