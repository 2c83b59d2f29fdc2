"""Storage for a program's tensors, on every machine: checked when it is given, allocated when it is
not, poisoned for checks. Where the bytes lie is the machine's business."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mkport.declare import TensorSpec
from mkport.errors import UserError

ALIGN = 64  # bytes: a cache line, a 16-lane vector
NUMPY: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(np.uint16),
    "i32": np.dtype(np.int32),
    "f16": np.dtype(np.float16),
    "f64": np.dtype(np.float64),
    "i64": np.dtype(np.int64),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}
POISON: dict[str, float] = {  # NaN, or an index that is never valid
    "f32": np.nan,
    "bf16": 0x7FC0,
    "i32": -(2**31),
    "f16": np.nan,
    "f64": np.nan,
    "i64": -(2**63),
    "i16": -(2**15),
    "i8": -(2**7),
    "u8": 2**8 - 1,
}


def allocate(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Zeroed storage of a tensor table's `dtype` ("bf16" as uint16) and shape, at a multiple of 64
    bytes, with 64 bytes behind it that a tile's tail may read."""
    kind = NUMPY[dtype]
    size = int(np.prod(shape)) * kind.itemsize
    raw = np.zeros(size + 2 * ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + size].view(kind).reshape(shape)


def poison(specs: Mapping[str, TensorSpec], tensors: Mapping[str, Any]) -> None:
    """Fills scratch and outputs with NaN (and impossible indices)."""
    for name, spec in specs.items():
        if spec.kind in ("scratch", "output"):
            tensors[name][...] = POISON[spec.dtype]


def place(
    specs: Mapping[str, TensorSpec],
    given: Mapping[str, Any],
    allocated: Callable[[str, tuple[int, ...]], Any] = allocate,
    brought: Callable[[Any], Any] = lambda array: array,
) -> dict[str, Any]:
    """Every tensor's array: those given, `brought` to the machine and checked against the table;
    the rest `allocated`, by dtype and shape.

    Raises UserError for an array that the table does not name, a weight that is missing, and a
    wrong dtype, shape or layout.
    """
    if unknown := sorted(set(given) - set(specs)):
        raise UserError(f"The program has no tensor {unknown[0]!r}; leave it out.")
    arrays: dict[str, Any] = {}
    for name, spec in specs.items():
        if name not in given:
            if spec.kind == "weight":
                raise UserError(
                    f"The weight {name!r} {list(spec.shape)} is missing; give its array."
                )
            arrays[name] = allocated(spec.dtype, spec.shape)
            continue
        array = brought(given[name])
        if array.dtype != NUMPY[spec.dtype] or array.shape != spec.shape:
            raise UserError(
                f"Tensor {name!r} is {array.dtype}{list(array.shape)}, but the program declares "
                f"{spec.dtype} ({NUMPY[spec.dtype]}){list(spec.shape)}."
            )
        if not array.flags.c_contiguous:
            raise UserError(f"Tensor {name!r} is not contiguous; pass np.ascontiguousarray(array).")
        arrays[name] = array
    return arrays
