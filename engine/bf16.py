"""bfloat16 in numpy, which has no such type: its bits live in uint16 arrays."""

import numpy as np


def to_f32(bits: np.ndarray) -> np.ndarray:
    """The float32 values (any shape) of bfloat16 bits held as uint16; exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def from_f32(values: np.ndarray) -> np.ndarray:
    """The uint16 bits of float32 values (any shape), rounded to nearest, ties to even.

    A NaN stays a quiet NaN of its sign, as in PyTorch's and ggml's conversions.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(64)
    return np.where(np.isnan(values), quiet, rounded).astype(np.uint16)
