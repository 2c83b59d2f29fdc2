"""The tensor table: every tensor of a program, by name, with its storage and logical shape."""

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["weight", "input", "scratch", "flagged", "state", "output"]
# The first three are those of the ops that come with mkport; the rest occur in ported kernels.
DTYPE_BYTES = {
    "f32": 4, "bf16": 2, "i32": 4, "f16": 2, "f64": 8, "i64": 8, "i16": 2, "i8": 1, "u8": 1,
}  # fmt: skip
MAX_DIMS = 3  # of a logical shape


@dataclass(frozen=True)
class TensorSpec:
    """One tensor.

    `kind` says who fills it: "weight" the loader, once; "input" the host, before each step;
    "scratch" tasks, dead after the step; "flagged" likewise, each word once, and until then it
    tells that it is not written, so that readers can await it (the CUDA machine's alone do);
    "state" tasks, alive over steps (key-value cache); "output" tasks, read by the host after the
    step. `shape` is the storage, row-major.
    `logical` is the coordinate space that accesses are declared in, where it differs: a paged
    cache is declared as [row, past or now, head], which covers every length at once. Raises
    ValueError for an unknown `dtype`, and for other than 1 to 3 logical dimensions.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: Kind
    logical: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(
                f"tensor {self.name}: dtype {self.dtype!r} is not one of {list(DTYPE_BYTES)}"
            )
        if not self.logical:
            object.__setattr__(self, "logical", self.shape)
        if not 1 <= len(self.logical) <= MAX_DIMS:
            raise ValueError(
                f"tensor {self.name}: {len(self.logical)} logical dimensions, not 1 to {MAX_DIMS}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of storage."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]
