"""bfloat16 in numpy, which has no such type: its bits live in uint16 arrays."""

import numpy as np


def to_f32(bits: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 `bits` held as uint16, of any shape; exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def from_f32(values: np.ndarray) -> np.ndarray:
    """The uint16 bits of float32 `values` of any shape, rounded to nearest, ties to even.

    A NaN stays a quiet NaN of its sign. Source: the rounding of PyTorch's `c10/util/BFloat16.h`
    and of ggml's `ggml_compute_fp32_to_bf16`.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(64)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
