"""Tensor maps: how the copy engine of a GPU from sm_90 on is told of a weight matrix or a cache, so
that one instruction brings some rows of it in the order that the ring keeps."""

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from mkport.compose.cuda_constants import BLOCK_BYTES, BOX_ROWS, MAP_BYTES, ROW_BYTES
from mkport.declare import DTYPE_BYTES, TensorSpec
from mkport.errors import UserError
from mkport.plan import Schedule

# The driver's constants, from cuda.h.
_UINT16, _UINT32 = 1, 2
_NO_INTERLEAVE, _SWIZZLE_128B, _NO_PROMOTION, _FILL_ZEROS = 0, 3, 0, 0
_ALIGN = 64  # bytes, of a map in host memory
MOST_COPIED = 64  # keys, or values, by one copy


@dataclass(frozen=True)
class Matrix:
    """Weights or a cache as the copy engine sees them: rows, in blocks of 128 bytes."""

    rows: int
    row_bytes: int
    blocks: int  # of a row that a copy brings: a slice of k
    copied: int  # rows that a copy brings: of a cache, all of one page


def matrices(schedule: Schedule) -> dict[str, Matrix]:
    """The tensors of weights and caches that are copied some rows at a time; others, whose rows are
    no whole blocks, come in pieces."""
    graph = schedule.graph
    kinds = {
        node.args[arg.name]: arg.dtype
        for node in graph.nodes
        for arg in node.op.tensors
        if arg.dtype in ("weight", "kv")
    }
    specs = graph.tensors.items()
    found = {name: _matrix(spec, kinds[name]) for name, spec in specs if name in kinds}
    return {name: matrix for name, matrix in found.items() if matrix is not None}


def _matrix(spec: TensorSpec, kind: str) -> Matrix | None:
    row_bytes = spec.shape[-1] * DTYPE_BYTES[spec.dtype] if len(spec.shape) > 1 else 0
    if not row_bytes or row_bytes % BLOCK_BYTES or 0 in spec.shape:
        return None
    rows = int(np.prod(spec.shape[:-1], dtype=np.int64))
    copied = gcd(spec.shape[-2], MOST_COPIED) if kind == "kv" else BOX_ROWS
    return Matrix(rows, row_bytes, min(row_bytes, ROW_BYTES) // BLOCK_BYTES, copied)


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
