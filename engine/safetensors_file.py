"""One safetensors file: reading and checking its header, and writing one tensor by tensor. Which
tensors a model needs is not known here. Format: 8 bytes of header length (little endian), a JSON
header of name -> dtype, shape, [begin, end) in the data, then the data without holes.

Source: the README of huggingface/safetensors, "Format".
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mkport.errors import UserError

ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}
NUMPY_TYPES: dict[str, type[np.generic]] = {
    "BF16": np.uint16,
    "F16": np.float16,
    "F32": np.float32,
}
ALIGNMENT = 64  # bytes: where the data begins in files written here

# The other types of the format, so that their tensors are refused by name and not as garbage.
_OTHER_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2}
_OTHER_BYTES |= {"U32": 4, "I32": 4, "U64": 8, "I64": 8, "F64": 8}


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in its file."""

    file: Path
    dtype: str  # as the file spells it: "BF16", "F16", "F32", ...
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int


def _broken(path: Path, what: str) -> UserError:
    return UserError(
        f"{path} is not a whole safetensors file: {what}. It was cut short or damaged; fetch or "
        f"copy this file again."
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name occurs twice")
    return made


def _entry(path: Path, name: str, raw: Any, data: int, size: int) -> Entry:
    """Check one header entry; `data` and `size` are where the data begins and the file ends."""
    try:
        dtype, shape, (begin, end) = raw["dtype"], tuple(raw["shape"]), raw["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _broken(path, f"the header entry of tensor {name} is garbled") from error
    numbers = (*shape, begin, end)
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise _broken(path, f"tensor {name} has the shape {shape} and offsets {begin}, {end}")
    if not isinstance(dtype, str):
        raise _broken(path, f"tensor {name} has the dtype {dtype!r}")
    if begin > end or data + end > size:
        raise _broken(
            path, f"tensor {name} lies at bytes {begin} to {end} of {size - data} bytes of data"
        )
    item = ITEM_BYTES.get(dtype) or _OTHER_BYTES.get(dtype)
    if item is not None and item * math.prod(shape) != end - begin:
        raise _broken(path, f"tensor {name}, {dtype} {list(shape)}, is given {end - begin} bytes")
    return Entry(path, dtype, shape, data + begin, end - begin)


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of a safetensors file by name, in the order of their bytes.

    Raises UserError when the file is missing, cut short, garbled, or has tensors that overlap,
    leave holes or lie outside of it.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise _broken(path, f"its header should be {length} bytes, the file has {size}")
            text = file.read(length)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error}). Fetch the checkpoint again.") from error
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _broken(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    data = 8 + length
    found = {name: _entry(path, name, raw, data, size) for name, raw in header.items()}
    entries = dict(sorted(found.items(), key=lambda item: (item[1].offset, item[1].nbytes)))
    at = data
    for name, entry in entries.items():
        if entry.offset != at:
            word = "overlaps the tensor before it" if entry.offset < at else "follows a hole"
            raise _broken(path, f"tensor {name} {word}")
        at += entry.nbytes
    if at != size:
        raise _broken(path, f"{size - at} bytes follow its last tensor")
    return entries


def write_header(file: BinaryIO, shapes: Mapping[str, tuple[int, ...]], dtype: str) -> None:
    """Write the header of a file whose tensors all are `dtype` and follow in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        end = at + ITEM_BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)  # the format allows trailing spaces
    file.write(len(text).to_bytes(8, "little") + text)


def write_rows(file: BinaryIO, chunks: Iterable[np.ndarray]) -> int:
    """Append a tensor's `chunks`, each [rows, ...], in C order; returns the bytes written."""
    total = 0
    for chunk in chunks:
        file.write(np.ascontiguousarray(chunk).data)
        total += chunk.nbytes
    return total
