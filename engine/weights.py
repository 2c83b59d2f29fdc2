"""A model directory's weights, memory-mapped and checked against the shapes its family declares.
No torch, and no copy unless another dtype is asked for. Tensors made of several are put together
elsewhere."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from mkport.declare.case import from_bf16, to_bf16
from mkport.engine.jsonfile import read_json
from mkport.engine.safetensors_file import ITEM_BYTES, NUMPY_TYPES, Entry, read_header
from mkport.errors import UserError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
STORED_AS = {"BF16": "bf16", "F32": "f32", "F16": "f32"}  # the dtype each is read as by default
DTYPES = ("bf16", "f32")

Shapes = Mapping[str, tuple[int, ...]]


class Weights(Mapping[str, np.ndarray]):
    """The tensors by Hugging Face name, all of one `dtype`.

    `weights[name]` is a read-only array of the declared shape: bfloat16 bits as uint16 ("bf16"), or
    float32 ("f32"). A tensor stored in that dtype is a view of the mapped file; any other is
    converted when read (float16 to float32 is exact, to bfloat16 rounds), and the converted array
    lives as long as somebody holds it, so hold it or read it once.
    """

    def __init__(self, entries: Mapping[str, Entry], dtype: str) -> None:
        self.dtype = dtype  # "bf16" or "f32"
        self._entries = entries
        files = {entry.file for entry in entries.values()}
        self._maps = {file: _map(file) for file in files}
        self._converted: WeakValueDictionary[str, np.ndarray] = WeakValueDictionary()

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self._entries[name]
        raw = self._maps[entry.file][entry.offset : entry.offset + entry.nbytes]
        aligned = entry.offset % ITEM_BYTES[entry.dtype] == 0
        if aligned and STORED_AS[entry.dtype] == self.dtype and entry.dtype != "F16":
            return raw.view(NUMPY_TYPES[entry.dtype]).reshape(entry.shape)
        array = self._converted.get(name)
        if array is None:
            stored = (raw if aligned else raw.copy()).view(NUMPY_TYPES[entry.dtype])
            array = self._convert(stored.reshape(entry.shape), entry.dtype)
            array.flags.writeable = False
            self._converted[name] = array
        return array

    def read_into(self, name: str, out: np.ndarray) -> None:
        """Reads a tensor into `out`, a contiguous array of its shape and of this dtype.

        The bytes come from the file straight into `out`, not through the map, so that they are
        never resident twice. Raises UserError when the file has become shorter.
        """
        entry = self._entries[name]
        direct = STORED_AS[entry.dtype] == self.dtype and entry.dtype != "F16"
        stored = out if direct else np.empty(entry.shape, NUMPY_TYPES[entry.dtype])
        with entry.file.open("rb", buffering=0) as file:
            file.seek(entry.offset)
            left = stored.reshape(-1).view(np.uint8).data
            while left and (count := file.readinto(left)):
                left = left[count:]
        if left:
            raise UserError(f"{entry.file} has become shorter while it was read. Fetch it again.")
        if not direct:
            out[...] = self._convert(stored, entry.dtype)

    def _convert(self, stored: np.ndarray, dtype: str) -> np.ndarray:
        if STORED_AS[dtype] == self.dtype:
            return stored.astype(np.float32) if dtype == "F16" else stored
        if self.dtype == "f32":
            return from_bf16(stored)
        return to_bf16(stored.astype(np.float32, copy=False))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        return self._entries[name].shape

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in this dtype."""
        item = 2 if self.dtype == "bf16" else 4
        stored = ((e.nbytes // ITEM_BYTES[e.dtype]) for e in self._entries.values())
        return sum(item * count for count in stored)


def _map(file: Path) -> np.ndarray:
    """The bytes of a file, mapped read-only: uint8 [size]."""
    return np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))


def open_weights(
    directory: Path, shapes: Shapes, ignored: Shapes | None = None, dtype: str | None = None
) -> Weights:
    """Map the weights of a model directory: `model.safetensors`, or shards with their index.

    `shapes` are the tensors the model needs, `ignored` those it may hold without using them;
    `dtype` is "bf16" or "f32", or None for what most of the bytes are stored as (float16 is read
    as float32). Raises UserError naming file and tensor when anything is missing, damaged, left
    over, of another shape, or of a dtype that is not bfloat16, float16 or float32.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"The dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}.")
    entries = all_entries(directory)
    for name, shape in {**(ignored or {}), **shapes}.items():
        entry = entries.get(name)
        if entry is None:
            if name in shapes:
                raise UserError(
                    f"The tensor {name} {list(shape)} is missing from the weights in {directory}. "
                    f"The checkpoint is incomplete or is not what its config.json says."
                )
        elif entry.shape != shape:
            raise UserError(
                f"{entry.file}: the tensor {name} is {list(entry.shape)}, but config.json makes "
                f"it {list(shape)}. One of the two files belongs to another checkpoint."
            )
    for name, entry in entries.items():
        if name not in shapes and name not in (ignored or {}):
            raise UserError(
                f"{entry.file}: the tensor {name} {list(entry.shape)} has no place in this model, "
                f"and leaving it out could give wrong numbers. Use a checkpoint without it."
            )
        if name in shapes and entry.dtype not in STORED_AS:
            raise UserError(
                f"{entry.file}: the tensor {name} is stored as {entry.dtype}, which is not "
                f"implemented; {', '.join(STORED_AS)} are. Convert the checkpoint to one of them."
            )
    used = {name: entries[name] for name in shapes}
    if dtype is None:
        bytes_of = {
            d: sum(e.nbytes for e in used.values() if STORED_AS[e.dtype] == d) for d in DTYPES
        }
        dtype = max(DTYPES, key=lambda d: bytes_of[d])
    return Weights(used, dtype)


def _is_there(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:  # such as a name longer than any file's
        return False


def all_entries(directory: Path) -> dict[str, Entry]:
    """Every tensor of the directory's safetensors files. Raises UserError when a file is missing,
    damaged, or not what the index says."""
    if (directory / SINGLE).exists():
        return read_header(directory / SINGLE)
    index = directory / INDEX
    if not index.exists():
        raise UserError(
            f"{directory} has no weights: neither {SINGLE} nor {INDEX} is there. Put a safetensors "
            f"checkpoint there (pickled .bin files are not read: convert them first)."
        )
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(s, str) for s in placed.values()):
        raise UserError(f"{index} has no weight_map of tensor to file. Fetch this file again.")
    entries: dict[str, Entry] = {}
    for shard in sorted(set(placed.values())):
        if Path(shard).name != shard:
            raise UserError(f"{index} names the shard {shard!r}, which is not a plain file name.")
        if not _is_there(directory / shard):
            raise UserError(
                f"{directory / shard} is missing, but {INDEX} lists it. Fetch this shard."
            )
        for name, entry in read_header(directory / shard).items():
            if placed.get(name) != shard:
                raise UserError(
                    f"{entry.file} holds the tensor {name}, which {INDEX} does not place there. "
                    f"The index and the shards belong to different checkpoints: fetch both again."
                )
            entries[name] = entry
    for name, shard in placed.items():
        if name not in entries:
            raise UserError(
                f"{directory / shard} lacks the tensor {name}, which {INDEX} places there. "
                f"Fetch this shard again."
            )
    return entries
