"""A model's weights as its step reads them: experts stacked, tensors renamed or scaled while they
are loaded, the rest mapped from the files until a run holds it. What belongs where is the family's
to say."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from mkport.declare.case import from_bf16, to_bf16
from mkport.engine.gguf_file import Progress
from mkport.engine.jsonfile import read_json
from mkport.engine.safetensors_file import Entry
from mkport.engine.weights import Weights, all_entries, open_weights
from mkport.errors import UserError
from mkport.machines.cpu.memory import ALIGN
from mkport.models import family_of, parse_config
from mkport.models.base import DecoderConfig
from mkport.models.tensors import Index, Pieces, piece_shapes

SCAN_AT_ONCE = 1 << 20  # elements that a scan looks at together; its scratch stays in the cache


@dataclass(frozen=True)
class Apart:
    """A tensor that the files hold in pieces. Reading one raises UserError for NaN or infinity."""

    directory: Path
    files: Weights
    shape: tuple[int, ...]
    pieces: Mapping[str, Index]  # a file's tensor -> where in this one it belongs

    def parts(self) -> Iterator[tuple[Index, np.ndarray]]:
        """Each piece's place in the tensor, and the piece in its own shape: mapped from its file if
        its dtype is the one asked for. Raises UserError for NaN or infinity in a piece."""
        for name, place in self.pieces.items():
            piece = self.files[name]
            refuse_not_finite(self.directory, name, piece)
            yield place, piece

    def whole(self, done: Callable[[], object] = lambda: None) -> np.ndarray:
        """The tensor in its shape, allocated once and filled from the files; `done` is called after
        a piece. Raises UserError for NaN or infinity, and for a file that has become shorter."""
        array = np.empty(self.shape, np.uint16 if self.files.dtype == "bf16" else np.float32)
        for name, place in self.pieces.items():
            part = array[place]
            self.files.read_into(name, part)
            refuse_not_finite(self.directory, name, part)
            done()
        return array


class ModelWeights(Mapping[str, np.ndarray]):
    """The tensors of a step by name: bfloat16 bits as uint16 ("bf16"), or float32 ("f32").

    A tensor of a file is a read-only view, as in `Weights`, until `hold` is called; one that was
    put together is an array that lives as long as this object. A scaled vector is float32 whatever
    the dtype. A tensor that was left in pieces is put together by `hold`, or whenever it is asked
    for by name; `parts` gives its pieces.
    """

    def __init__(
        self,
        files: Weights,
        stored: Mapping[str, str],
        made: Mapping[str, np.ndarray],
        apart: Mapping[str, Apart] | None = None,
    ) -> None:
        self.dtype = files.dtype
        self._files = files
        self._stored = stored  # a step's tensor -> the file's tensor that it is a view of
        self._made = made
        self._apart = apart or {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._apart:
            return self._apart[name].whole()
        array = self._made.get(name)
        return self._files[self._stored[name]] if array is None else array

    def __iter__(self) -> Iterator[str]:
        yield from self._stored
        yield from self._made
        yield from self._apart

    def __len__(self) -> int:
        return len(self._stored) + len(self._made) + len(self._apart)

    def parts(self, name: str) -> Iterator[tuple[Index, np.ndarray]]:
        """A tensor piece by piece: each one's place in it, and the piece in its own shape, to be
        copied at once. Raises UserError for NaN or infinity in a piece of one left in pieces."""
        if name in self._apart:
            yield from self._apart[name].parts()
        else:
            yield (), self[name]

    def hold(self) -> None:
        """Reads every tensor that is still a view of a file into one block of memory, once.

        A large block can have large pages: a step over it was 8 % faster than over mapped files,
        whose pages are small. The bytes come from the files, not through the maps, so they are
        never resident twice. Raises UserError for a file that has become shorter, and for NaN or
        infinity in a tensor that was left in pieces.
        """
        self._made = {**self._made, **{name: apart.whole() for name, apart in self._apart.items()}}
        self._apart = {}
        if not self._stored:
            return
        item = np.dtype(np.uint16 if self.dtype == "bf16" else np.float32)
        shapes = {name: self._files.shape(stored) for name, stored in self._stored.items()}
        sizes = {n: -(-math.prod(s) * item.itemsize // ALIGN) * ALIGN for n, s in shapes.items()}
        block = np.empty(sum(sizes.values()) + ALIGN, np.uint8)
        at = -block.ctypes.data % ALIGN
        held: dict[str, np.ndarray] = {}
        for name, stored in self._stored.items():
            size = math.prod(shapes[name]) * item.itemsize
            held[name] = block[at : at + size].view(item).reshape(shapes[name])
            self._files.read_into(stored, held[name])
            held[name].flags.writeable = False
            at += sizes[name]
        self._made, self._stored = {**held, **self._made}, {}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in this dtype."""
        return self._files.nbytes


def assemble(
    directory: Path,
    family: ModuleType,
    config: DecoderConfig,
    dtype: str | None = None,
    progress: Progress | None = None,
    scan: bool = False,
    stack: bool = True,
) -> ModelWeights:
    """Open a model directory and put together what its step reads.

    A stacked tensor is allocated once and filled from the files, one published tensor after the
    other, so that no weight is ever resident twice. `progress` is told after each. With `stack`
    False it is left in pieces, for a device that they are copied to. Raises UserError for whatever
    `open_weights` refuses, and for NaN or infinity in a tensor that is copied (in any, with
    `scan`).
    """
    files, in_pieces = _open(directory, family, config, dtype)
    shapes: dict[str, tuple[int, ...]] = family.tensor_shapes(config)
    stored = {name: name for name in shapes}
    apart: dict[str, Apart] = {}
    for name, pieces in in_pieces.items():
        if list(pieces.values()) == [()]:
            stored[name] = next(iter(pieces))
        else:
            apart[name] = Apart(directory, files, shapes[name], pieces)
    scales: dict[str, float] = family.scales(config)
    made = _stack(apart, progress) if stack else {}
    for name, scale in scales.items():
        made[name] = _scaled(files[stored[name]], scale)
    stored = {n: source for n, source in stored.items() if n not in made and n not in apart}
    if scan:
        for source in stored.values():
            refuse_not_finite(directory, source, files[source])
    for array in made.values():
        array.flags.writeable = False
    return ModelWeights(files, stored, made, None if stack else apart)


def check(directory: Path) -> None:
    """Raise UserError for whatever loading a directory would refuse, without reading weights."""
    raw = read_json(directory / "config.json")
    _open(directory, family_of(raw), parse_config(raw), None)


def _open(
    directory: Path, family: ModuleType, config: DecoderConfig, dtype: str | None
) -> tuple[Weights, Pieces]:
    """The files' tensors, and which of the step's tensors they hold in pieces."""
    entries = all_entries(directory)
    _refuse_too_few(directory, config, entries)
    shapes: dict[str, tuple[int, ...]] = family.tensor_shapes(config)
    in_pieces = {
        name: pieces for name, pieces in family.pieces(config).items() if name not in entries
    }
    published = {name: shape for name, shape in shapes.items() if name not in in_pieces}
    for name, pieces in in_pieces.items():
        published |= piece_shapes(shapes[name], pieces)
    return open_weights(directory, published, family.ignored_shapes(config), dtype), in_pieces


def _refuse_too_few(directory: Path, config: DecoderConfig, entries: Mapping[str, Entry]) -> None:
    """Raises UserError where the files cannot hold so many layers or experts, before a name is made
    for every one of them."""
    mixture = getattr(config, "experts", None)
    experts = mixture.experts if mixture is not None else 0
    stacked = any(entry.shape[:1] == (experts,) for entry in entries.values())
    for what, count in (("layers", config.layers), ("experts", 0 if stacked else experts)):
        if count > len(entries):
            raise UserError(
                f"{directory}: config.json says {count} {what}, but the files hold only "
                f"{len(entries)} tensors. One of the two belongs to another checkpoint."
            )


def _stack(apart: Mapping[str, Apart], progress: Progress | None) -> dict[str, np.ndarray]:
    total, seen = sum(len(tensor.pieces) for tensor in apart.values()), 0

    def done() -> None:
        nonlocal seen
        seen += 1
        if progress is not None:
            progress(seen, total)

    return {name: tensor.whole(done) for name, tensor in apart.items()}


def _scaled(array: np.ndarray, scale: float) -> np.ndarray:
    """The array times a number: a vector in float32, a matrix rounded to its own dtype again."""
    wide = from_bf16(array) if array.dtype == np.uint16 else array
    product = wide * np.float32(scale)
    return to_bf16(product) if array.dtype == np.uint16 and array.ndim > 1 else product


def refuse_not_finite(directory: Path, name: str, array: np.ndarray) -> None:
    """Raises UserError, naming the tensor and the element, when a weight is NaN or infinite.

    `array` holds float32, or bfloat16 bits as uint16, in any shape, and is contiguous.
    """
    # all exponent bits set: infinity, or above it a NaN
    half = array.dtype == np.uint16
    kind: type[np.unsignedinteger] = np.uint16 if half else np.uint32
    magnitude, limit = (0x7FFF, 0x7F80) if half else (0x7FFFFFFF, 0x7F800000)
    bits = array.reshape(-1).view(kind)
    for first in range(0, bits.size, SCAN_AT_ONCE):
        part = np.bitwise_and(bits[first : first + SCAN_AT_ONCE], kind(magnitude))
        if part.max() >= limit:
            at = first + int((part >= limit).argmax())
            place = [int(i) for i in np.unravel_index(at, array.shape)]
            raise UserError(
                f"{directory}: the tensor {name} holds NaN or infinity at {place}, so the model "
                f"cannot give numbers. Fetch or convert the checkpoint again."
            )
