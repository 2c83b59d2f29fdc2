"""Turning a GGUF file into a Hugging Face model directory, its tensors dequantised a few rows at a
time. What its metadata means is in `gguf_llama`; the tokenizer is rebuilt in `gguf_tokenizer`.

Source: ggml's docs/gguf.md for the file, its gguf-py for the block formats (the package `gguf`).
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from mkport.declare.case import to_bf16
from mkport.engine.gguf_llama import config_of, match_tensors
from mkport.engine.gguf_tokenizer import tokenizer_files
from mkport.engine.safetensors_file import write_header, write_rows
from mkport.engine.weights import DTYPES, SINGLE
from mkport.errors import UserError
from mkport.models import llama

CONVERTER_VERSION = 1  # part of the cache key: raise it when the files written here change
ROWS_AT_ONCE = 4096  # bounds the memory a conversion takes: rows dequantised together

Progress = Callable[[int, int], None]  # tensors done, tensors in all


class _Reader(gguf.GGUFReader):
    """The package's reader, which stops at the end of the file instead of reading on past it."""

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError("it ends in the middle")
        return super()._get(offset, dtype, count, override_order)


def convert_gguf(path: Path, out_dir: Path, dtype: str, progress: Progress | None = None) -> None:
    """Write the model in a GGUF file as a Hugging Face directory that any loader reads.

    `dtype` is "bf16" or "f32" for all tensors. `out_dir` appears whole or not at all; when another
    process makes it meanwhile, that one is kept. Raises UserError for a damaged file, an
    architecture, field, tensor or tokenizer that is not implemented, an `out_dir` that exists, or a
    disk that cannot be written to.
    """
    if dtype not in DTYPES:
        raise UserError(f"The dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}.")
    if out_dir.exists():
        raise UserError(f"{out_dir} exists already. Remove it or choose another directory.")
    reader, meta = _open(path)
    config = config_of(path, meta, [tensor.name for tensor in reader.tensors])
    parsed = llama.LlamaConfig.from_hf(config)
    tensors = match_tensors(path, reader, parsed)
    files = {"config.json": config | {"torch_dtype": {"bf16": "bfloat16", "f32": "float32"}[dtype]}}
    files |= tokenizer_files(path, meta, parsed.vocab, parsed.context)
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".converting-", dir=out_dir.parent))
        try:
            for name, content in files.items():
                (temporary / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
            _write_weights(temporary / SINGLE, tensors, parsed, dtype, progress)
            temporary.chmod(0o755)
            _publish(temporary, out_dir)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"The converted model cannot be written to {out_dir} ({error}). Free some space, or "
            f"choose a folder that you may write to (for the cache: MKPORT_CACHE_DIR)."
        ) from error


def _open(path: Path) -> tuple[gguf.GGUFReader, dict[str, Any]]:
    """The reader and the metadata by key; arrays as lists, text as str."""
    try:
        reader = _Reader(path)
        meta = {key: field.contents() for key, field in reader.fields.items()}
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error}). Check the path.") from error
    except Exception as error:  # garbage makes the package fail in many ways
        raise UserError(
            f"{path} is not a whole GGUF file ({error}). It was cut short or damaged; fetch or "
            f"copy it again."
        ) from error
    return reader, meta


def _rows(tensor: gguf.ReaderTensor, permuted: int) -> Iterator[np.ndarray]:
    """Dequantised float32 rows, a chunk at a time. `permuted` is head_dim where the file holds
    each head's rows in interleaved pair order (0, d/2, 1, d/2 + 1, ...), else 0."""
    step = max(ROWS_AT_ONCE // permuted, 1) * permuted if permuted else ROWS_AT_ONCE
    data = tensor.data if len(tensor.shape) > 1 else tensor.data[None]
    for first in range(0, len(data), step):
        try:
            rows = gguf.dequantize(data[first : first + step], tensor.tensor_type)
        except NotImplementedError as error:
            raise UserError(
                f"The GGUF tensor {tensor.name} is quantised as {tensor.tensor_type.name}, which "
                f"the package gguf cannot undo. Use another GGUF file of this model."
            ) from error
        if permuted:
            width = rows.shape[-1]
            # [heads, pairs, 2, in] -> [heads, 2, pairs, in]: the half-split order of config.json
            rows = rows.reshape(-1, permuted // 2, 2, width).swapaxes(1, 2).reshape(-1, width)
        yield rows


def _write_weights(
    path: Path,
    tensors: Mapping[str, gguf.ReaderTensor],
    config: llama.LlamaConfig,
    dtype: str,
    progress: Progress | None,
) -> None:
    shapes = llama.tensor_shapes(config)
    with path.open("wb") as file:
        write_header(file, shapes, {"bf16": "BF16", "f32": "F32"}[dtype])
        for done, name in enumerate(shapes, start=1):
            rotary = name.endswith(("q_proj.weight", "k_proj.weight"))
            chunks = _rows(tensors[name], config.head_dim if rotary else 0)
            write_rows(file, (to_bf16(c) if dtype == "bf16" else c for c in chunks))
            if progress is not None:
                progress(done, len(shapes))


def _publish(temporary: Path, out_dir: Path) -> None:
    """Give the finished directory its name, unless another process was first."""
    try:
        os.rename(temporary, out_dir)
    except OSError:
        if not (out_dir / SINGLE).is_file():
            raise
