"""How a step's tokens are chosen on the machine itself: greedily, or drawn at a temperature with
noise that depends on (seed, choice, position) alone. What else a request may ask for (penalties,
top-p, grammars) needs the logits on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mkport.engine.noise import key_of
from mkport.kernels.sample.op import WORDS


@dataclass(frozen=True)
class Draw:
    """How a row's token is chosen; temperature 0 is greedy."""

    temperature: float = 0.0
    seed: int = 0  # int64
    choice: int = 0  # which of a request's choices


GREEDY = Draw()


def words_of(draws: Sequence[Draw]) -> np.ndarray:
    """The `sampling` words of the op `sample`, a row a draw: int32 [rows, 4], the temperature's
    float32 bits, the seed's low and high half, the choice."""
    words = np.zeros((len(draws), WORDS), np.uint32)
    for row, draw in zip(words, draws, strict=True):
        low, high = key_of(draw.seed)
        row[:] = np.float32(draw.temperature).view(np.uint32), low, high, draw.choice
    return words.view(np.int32)
