"""A case: concrete inputs on which an op's forms are compared with its oracle and each other."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

WIDTHS = {"uint16": "bf16", "float32": "f32", "int32": "i32"}


def to_bf16(values: np.ndarray) -> np.ndarray:
    """The uint16 bits of float `values` of any shape, rounded to nearest, ties to even.

    A NaN stays a quiet NaN of its sign. Source: ggml's `ggml_compute_fp32_to_bf16`; numbers come
    out as with PyTorch's `c10/util/BFloat16.h`, which has one NaN.
    """
    exact = np.ascontiguousarray(values, np.float32)
    bits = exact.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(64)
    return np.where(np.isnan(exact), quiet, rounded).astype(np.uint16)


def from_bf16(values: np.ndarray) -> np.ndarray:
    """The float32 of bfloat16 bits `values` held as uint16, of any shape; exact."""
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """Float values of any shape as they lie in storage: uint16 bits for `dtype` "bf16", contiguous
    float32 for "f32"."""
    return to_bf16(values) if dtype == "bf16" else np.ascontiguousarray(values, np.float32)


@dataclass
class Case:
    """Inputs of one node of an op, by argument name.

    `arrays` holds every tensor argument (bfloat16 as uint16), the outputs too: poisoned with NaN
    where the op only writes, with their old contents where it updates. `values` holds the ints
    and floats. `outputs` names the tensors to compare. `logical` gives the logical shape of a
    tensor where it is not the array's.
    """

    arrays: dict[str, np.ndarray]
    values: dict[str, int | float]
    outputs: tuple[str, ...]
    logical: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def copy(self) -> "Case":
        """The same case with arrays of its own; arrays that are one stay one."""
        fresh = {id(a): a.copy() for a in self.arrays.values()}
        arrays = {name: fresh[id(a)] for name, a in self.arrays.items()}
        return Case(arrays, dict(self.values), self.outputs, dict(self.logical))

    @property
    def a(self) -> SimpleNamespace:
        """Arrays and values as one namespace."""
        everything: dict[str, Any] = {**self.arrays, **self.values}
        return SimpleNamespace(**everything)
