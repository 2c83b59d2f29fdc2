"""Cases of ops for tests: what their oracles make, by the op's name."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mkport.declare.case import Case
from mkport.library import find_op
from mkport.testing.parts import load_part


def made(name: str, dtype: str = "bf16", **shape: Any) -> Case:
    """The op's case of a shape, always the same, with weights and cache of a storage type."""
    oracle = load_part(find_op(name), "oracle")
    return oracle.make(np.random.default_rng(0), dtype, dtype, **shape)


PRODUCTS: dict[str, dict[str, Any]] = {
    "gemm": {"n": 40},
    "gemm_rope": {"heads": 2, "head_dim": 32},
    "gemm_silu": {"n": 40},
}


def normed_apart(name: str, k: int, run: Callable[[str, Case], np.ndarray]) -> tuple[Case, Case]:
    """A product whose rows of k columns are normed, and the same of rows that rmsnorm has normed
    before; `run` gives an op's output."""
    fused = made(name, tokens=5, rows=4, k=k, norm=2.0, **PRODUCTS[name])
    first = {"count": fused.arrays["count"], "x": fused.arrays["x"], "w": fused.arrays["norm_w"]}
    first["y"] = np.full_like(first["x"], np.nan)
    values = {"groups": 1, "k": k, "eps": fused.values["norm_eps"]}
    after = fused.copy()
    after.arrays["x"] = run("rmsnorm", Case(first, values, ("y",)))
    del after.arrays["norm_w"]
    return fused, after


# Steps of more than 8 rows, as a GPU's: blocks of tokens, slots of up to 8 pairs. By op and name.
WIDE: dict[str, dict[str, dict[str, Any]]] = {
    "gemm": {
        "blocks of 16": {"tokens": 40, "rows": 37, "n": 77, "k": 80, "block": 16, "residual": True},
        "empty blocks": {"tokens": 64, "rows": 9, "n": 16, "k": 1056, "block": 32},
    },
    "gemm_silu": {"blocks of 24": {"tokens": 40, "rows": 40, "n": 44, "k": 48, "block": 24}},
    "gemm_rope": {
        "queries": {"tokens": 33, "rows": 31, "heads": 2, "head_dim": 32, "k": 80, "block": 8},
        "keys": {
            "tokens": 40, "rows": 40, "heads": 2, "head_dim": 32, "k": 48, "half_split": 0,
            "cached": True, "block": 32,
        },
    },
    "moe_group": {
        "slots of 8": {"tokens": 64, "rows": 61, "experts": 6, "k": 2, "most": 8, "lost": (3,)},
        "all to one": {"tokens": 33, "rows": 33, "experts": 200, "k": 1, "only": 150, "most": 8},
    },
    "moe_up": {
        "slots of 8": {"tokens": 40, "experts": 5, "top": 2, "n": 37, "k": 48, "most": 8},
        "all to one": {
            "tokens": 19, "experts": 3, "top": 1, "n": 48, "k": 80, "only": 2, "most": 8, "lost": 4,
        },
    },
    "moe_down": {
        "slots of 8": {"tokens": 40, "experts": 5, "top": 2, "n": 37, "k": 48, "most": 8},
        "all to one": {
            "tokens": 19, "experts": 3, "top": 1, "n": 48, "k": 80, "only": 2, "most": 8, "lost": 4,
        },
    },
}  # fmt: skip
