"""What a step gives: choices and logits of its wanted rows, at once or later."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np


def _nothing() -> None:
    """It is there already."""


@dataclass(eq=False)
class Ran:
    """What a step gives for its wanted rows, in the order of the parts; the next step takes it
    away, from a runner that runs ahead the one behind the next."""

    choices: np.ndarray  # int32 [wanted], as asked for; -1 where logits are not finite
    read: Callable[[], np.ndarray]
    arrive: Callable[[], object] = _nothing  # waits until it is there; may raise

    @cached_property
    def logits(self) -> np.ndarray:
        """Float32 [wanted, vocabulary]: from a device they are fetched when they are looked at, and
        from a runner that runs ahead only those are right whose `Draw` says that they are."""
        return self.read()
