"""Tensor maps: how the copy engine of a GPU from sm_90 on is told of a weight matrix or a cache, so
that one instruction brings some rows of it in the order that the ring keeps."""

import ctypes
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from mkport.compose.cuda_constants import BLOCK_BYTES, MAP_BYTES
from mkport.declare import DTYPE_BYTES
from mkport.errors import UserError
from mkport.machines.cuda.layout import Matrix, matrices
from mkport.plan import Schedule

# The driver's constants, from cuda.h.
_UINT16, _UINT32 = 1, 2
_NO_INTERLEAVE, _SWIZZLE_128B, _NO_PROMOTION, _FILL_ZEROS = 0, 3, 0, 0
_ALIGN = 64  # bytes, of a map in host memory


def tensor_maps(schedule: Schedule, arrays: Mapping[str, Any]) -> Any:
    """The maps of all tensors in their order: CuPy uint8 [tensors, MAP_BYTES], zeros where none is
    needed. Raises UserError when the driver refuses one."""
    import cupy

    specs, known = schedule.graph.tensors, matrices(schedule)
    maps = np.zeros((len(specs), MAP_BYTES), np.uint8)
    encode = _encoder()
    for place, (name, spec) in enumerate(specs.items()):
        if name in known:
            maps[place] = _map(encode, known[name], arrays[name].data.ptr, DTYPE_BYTES[spec.dtype])
    return cupy.asarray(maps)


def _encoder() -> Any:
    """The driver's function; the driver itself is loaded already."""
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    try:
        return driver.cuTensorMapEncodeTiled
    except AttributeError as error:
        raise UserError(
            "The NVIDIA driver has no cuTensorMapEncodeTiled, which CUDA 12 brought: update it."
        ) from error


def _map(encode: Any, matrix: Matrix, address: int, element: int) -> np.ndarray:
    """One map. Source: the CUDA driver API, cuTensorMapEncodeTiled."""
    across = BLOCK_BYTES // element
    room = ctypes.create_string_buffer(MAP_BYTES + _ALIGN)
    at = -(-ctypes.addressof(room) // _ALIGN) * _ALIGN
    code = encode(
        ctypes.c_void_p(at),
        ctypes.c_int(_UINT16 if element == 2 else _UINT32),
        ctypes.c_uint32(3),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 3)(across, matrix.rows, matrix.row_bytes // BLOCK_BYTES),
        (ctypes.c_uint64 * 2)(matrix.row_bytes, BLOCK_BYTES),
        (ctypes.c_uint32 * 3)(across, matrix.copied, matrix.blocks),
        (ctypes.c_uint32 * 3)(1, 1, 1),
        ctypes.c_int(_NO_INTERLEAVE),
        ctypes.c_int(_SWIZZLE_128B),
        ctypes.c_int(_NO_PROMOTION),
        ctypes.c_int(_FILL_ZEROS),
    )
    if code != 0:
        raise UserError(
            f"The NVIDIA driver refuses a tensor map of {matrix.rows} rows of {matrix.row_bytes} "
            f"bytes (error {code}): update the driver."
        )
    return np.frombuffer(ctypes.string_at(at, MAP_BYTES), np.uint8)
