"""How a step's tokens are chosen on the machine itself: what a row's words say, and what a
sequence's tables hold. What the fields mean is in `sampling`; which rows ask for what, the core
knows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from mkport.engine.noise import COLD, key_of
from mkport.kernels.sample.op import WORDS

REPEATS, COUNTS, BIASED, EARLY, MASKED, CUTS = 1, 2, 4, 8, 16, 32  # flags
PROMPT, END = 1 << 28, 1 << 29  # of a token's tally: it is in the prompt, it may end the output


class Tables(Protocol):
    """What changes a sequence's logits, as its tables hold it."""

    def tally(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids int64 [some], each once, and what the tally says of them, int32 [some]."""
        ...

    def bias(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids int64 [some], each once, and what is added to their logits, float32 [some]."""
        ...


@dataclass(frozen=True)
class Draw:
    """How a row's token is chosen. Temperature 0 is greedy.

    `tables` are its sequence's, where penalties, bias or `early` need them: a machine fills them
    when it sees them first, and counts the tokens that it chooses itself. `mask`, int32 [words],
    has a bit for each token that may come, the lowest bit first; ids past its end may not.
    """

    temperature: float = 0.0
    seed: int = 0  # int64
    choice: int = 0  # which of a request's choices
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    biased: bool = False
    early: bool = False  # no token that may end the output
    told: int | None = None  # rivals whose log probabilities are told, beside the token's own
    given: int | None = None  # the token that stands in for the chosen one
    tables: Tables | None = field(default=None, compare=False)
    mask: np.ndarray | None = field(default=None, compare=False)

    @cached_property
    def words(self) -> tuple[int, ...]:
        """A row's words for the op `sample` [16], as numbers without sign. Raises OverflowError for
        fields that do not fit them."""
        flags = REPEATS * (self.repetition != 1) + BIASED * self.biased + EARLY * self.early
        flags += COUNTS * (self.frequency != 0 or self.presence != 0) + CUTS * (self.min_p > 0)
        flags += MASKED * (self.mask is not None)
        share = min(max(round(self.top_p * 2**32), 1), 2**32 - 1) if self.top_p < 1 else 0
        told = 0 if self.told is None else 1 + self.told
        given = 0 if self.given is None else 1 + self.given
        least = math.log(self.min_p) if self.min_p > 0 else 0.0
        words = (
            *(_bits(self.temperature if self.temperature >= COLD else 0.0), *key_of(self.seed)),
            *(self.choice, flags, min(self.top_k, 2**31 - 1), share, _bits(least)),
            *(_bits(x) for x in (self.repetition, self.frequency, self.presence)),
            *(told, given, 0, 0, 0),
        )
        return tuple(np.array(words, np.uint32).tolist())


GREEDY = Draw()


def words_of(draws: Sequence[Draw]) -> np.ndarray:
    """The `sampling` words of the op `sample`, a row a draw: int32 [rows, 16]."""
    if all(draw is GREEDY for draw in draws):
        return np.zeros((len(draws), WORDS), np.int32)
    return np.array([draw.words for draw in draws], np.uint32).view(np.int32)


def _bits(x: float) -> int:
    return int(np.float32(x).view(np.uint32))
