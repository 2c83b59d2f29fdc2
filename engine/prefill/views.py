"""PyTorch's view of a target's tensors: the same memory, whether NumPy or CuPy allocated it."""

import warnings
from typing import Any

import numpy as np


def view(array: Any) -> Any:
    """A `torch.Tensor` over a NumPy or CuPy array; 16-bit words are bfloat16."""
    import torch

    words = array.dtype == np.uint16
    plain = array.view(np.int16) if words else array
    if isinstance(array, np.ndarray):
        with warnings.catch_warnings():  # weights are read-only, and nothing writes to them
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.from_numpy(plain)
    else:
        tensor = torch.from_dlpack(plain)
    return tensor.view(torch.bfloat16) if words else tensor
