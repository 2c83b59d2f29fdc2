"""Cases of ops for tests: what their oracles make, by the op's name."""

from typing import Any

import numpy as np

from mkport.declare.case import Case
from mkport.library import find_op
from mkport.testing.parts import load_part


def made(name: str, dtype: str = "bf16", **shape: Any) -> Case:
    """The op's case of a shape, always the same, with weights and cache of a storage type."""
    oracle = load_part(find_op(name), "oracle")
    return oracle.make(np.random.default_rng(0), dtype, dtype, **shape)
