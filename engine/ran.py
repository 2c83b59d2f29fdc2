"""What a step gives: choices of its wanted rows and what was told of them, at once or later."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def there() -> None:
    """It is there already."""


def unknown() -> None:
    """Nothing is known."""


@dataclass(eq=False)
class Ran:
    """What a step gives for its wanted rows, in the order of the parts; the next step takes it
    away, from a runner that runs ahead the one behind the next. `ids` and `logprobs` mean something
    for rows whose `Draw` asks to be told."""

    choices: np.ndarray  # int32 [wanted]; -1 where logits are not finite, -2: no token is allowed
    ids: np.ndarray  # int32 [wanted, rivals]: the likeliest tokens, the likeliest first
    logprobs: np.ndarray  # float32 [wanted, 1 + rivals]: the choice's and theirs
    arrive: Callable[[], object] = there  # waits until it is there; may raise
    reading: Callable[[], float | None] = unknown  # seconds that PyTorch took, once it is there

    @classmethod
    def none(cls, wanted: int) -> "Ran":
        """Of so many rows nothing yet."""
        choices = np.full(wanted, -1, np.int32)
        return cls(choices, np.full((wanted, 0), -1, np.int32), np.full((wanted, 1), np.nan))
