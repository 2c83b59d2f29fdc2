"""How a step's tokens are chosen on the machine itself: greedily, or drawn at a temperature with
noise that depends on (seed, choice, position) alone. What else a request may ask for (penalties,
top-p, grammars) needs the logits on the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mkport.engine.noise import key_of
from mkport.kernels.sample.op import WORDS


@dataclass(frozen=True)
class Draw:
    """How a row's token is chosen; temperature 0 is greedy."""

    temperature: float = 0.0
    seed: int = 0  # int64
    choice: int = 0  # which of a request's choices
    looked: bool = False  # the host looks at the row's logits too


GREEDY = Draw()
HOST = Draw(looked=True)  # the host chooses, from the logits


def words_of(draws: Sequence[Draw]) -> np.ndarray:
    """The `sampling` words of the op `sample`, a row a draw: int32 [rows, 4], the temperature's
    float32 bits, the seed's low and high half, the choice."""
    if all(draw is GREEDY for draw in draws):
        return np.zeros((len(draws), WORDS), np.int32)
    return np.array([_words_of(draw) for draw in draws], np.uint32).view(np.int32)


@lru_cache(maxsize=1024)
def _words_of(draw: Draw) -> tuple[int, ...]:
    bits = int(np.float32(draw.temperature).view(np.uint32))
    return (bits, *key_of(draw.seed), draw.choice, *[0] * (WORDS - 4))
