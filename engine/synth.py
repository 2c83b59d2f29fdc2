"""Random checkpoints in the exact published format: names, shards with their index, config, a
tokenizer of single bytes. Also a mixture of experts grown out of a dense model. No torch."""

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mkport.declare.case import to_bf16
from mkport.engine.gguf_file import Progress
from mkport.engine.safetensors_file import ITEM_BYTES, write_header, write_rows
from mkport.engine.weights import DTYPES, INDEX
from mkport.errors import UserError
from mkport.models import family_of, parse_config
from mkport.models.sizes import BOS, BYTE_TOKENS, EOS, config_of
from mkport.models.tensors import piece_shapes

SHARDS = 4  # files of weights, so that the index is always in use
AT_ONCE = 1 << 22  # elements drawn together: bounds the memory that writing takes
STORED = {"bf16": "BF16", "f32": "F32"}
TORCH_NAMES = {"bf16": "bfloat16", "f32": "float32"}

Draw = Callable[[str, tuple[int, ...]], Iterator[np.ndarray]]  # float32 chunks of rows


@dataclass(frozen=True)
class Written:
    """What was written."""

    directory: Path
    family: str
    parameters: int
    nbytes: int  # of weights
    shards: int


def synthesise(
    family: str,
    size: str,
    out_dir: Path,
    dtype: str = "bf16",
    seed: int = 0,
    progress: Progress | None = None,
) -> Written:
    """Write a random checkpoint of a family. The same arguments give the same bytes.

    `size` is "tiny" or "small"; `dtype` "bf16" or "f32". `out_dir` appears whole or not at all.
    Raises UserError for an unknown family, size or dtype, for the full size, which is not written
    to a disk, for an `out_dir` that exists, or a disk that cannot be written to.
    """
    config = config_of(family, size)
    if size == "full":
        parsed = parse_config(config)
        total = sum(map(np.prod, family_of(config).tensor_shapes(parsed).values()), 0)
        raise UserError(
            f"The full {family} has {2 * int(total) / 1e9:.0f} GB of weights, which are not "
            f"written to a disk: random ones are only of use in a GPU's memory, to measure speed, "
            f"which `python -m mkport.engine.bench.gpu_decode --family {family} --size full` does. "
            f"Here choose --size tiny or --size small."
        )
    return write_checkpoint(out_dir, config, random_weights(seed), dtype, byte_tokenizer, progress)


def random_weights(seed: int) -> Draw:
    """Normal weights under which activations keep their size and choices differ clearly.

    Products keep the size of their input (a standard deviation of 1 / sqrt(columns)); what is added
    to the residual stream is half of that; norms scatter around 1; router and head are spread wide
    enough (2 / sqrt(columns)) that experts and tokens are not chosen by rounding.
    """

    def draw(name: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        if len(shape) == 1:
            yield 1 + np.float32(0.1) * rng.standard_normal(shape, np.float32)
            return
        spread = np.float32(_gain(name) / np.sqrt(shape[-1]))
        rows = max(AT_ONCE // shape[-1], 1)
        for first in range(0, shape[0], rows):
            part = (min(rows, shape[0] - first), *shape[1:])
            yield rng.standard_normal(part, np.float32) * spread

    return draw


def _gain(name: str) -> float:
    if name.endswith(("o_proj.weight", "down_proj.weight", ".w2.weight")):
        return 0.5
    wide = ("mlp.gate.weight", "block_sparse_moe.gate.weight", "lm_head.weight")
    return 2.0 if name.endswith((*wide, "embed_tokens.weight")) else 1.0


def published_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of a checkpoint's tensors as they are published: every expert's on their own."""
    family, parsed = family_of(config), parse_config(config)
    pieces = family.pieces(parsed)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in family.tensor_shapes(parsed).items():
        shapes |= piece_shapes(shape, pieces.get(name, {name: ()}))
    return shapes


def write_checkpoint(
    out_dir: Path,
    config: Mapping[str, Any],
    draw: Draw,
    dtype: str,
    write_tokenizer: Callable[[Path, int], None],
    progress: Progress | None = None,
) -> Written:
    """Write config, tokenizer and sharded weights; `out_dir` appears whole or not at all.

    `draw` gives each published tensor; `write_tokenizer` is called with the directory and the size
    of the vocabulary. Raises UserError for an unknown dtype, an `out_dir` that exists, or a disk
    that cannot be written to.
    """
    if dtype not in DTYPES:
        raise UserError(f"The dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}.")
    if out_dir.exists():
        raise UserError(f"{out_dir} exists already. Remove it or choose another directory.")
    shapes = published_shapes(config)
    shards = _shards(shapes)
    full = dict(config) | {"dtype": TORCH_NAMES[dtype]}
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=out_dir.parent))
        try:
            (temporary / "config.json").write_text(json.dumps(full, indent=2), encoding="utf-8")
            write_tokenizer(temporary, int(config["vocab_size"]))
            nbytes = _write_shards(temporary, shards, draw, dtype, progress)
            temporary.chmod(0o755)
            os.rename(temporary, out_dir)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"The checkpoint cannot be written to {out_dir} ({error}). Free some space, or choose "
            f"a folder that you may write to."
        ) from error
    return Written(out_dir, config["model_type"], nbytes // _width(dtype), nbytes, len(shards))


def _width(dtype: str) -> int:
    return ITEM_BYTES[STORED[dtype]]


def _shards(shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, tuple[int, ...]]]:
    """The tensors, in order, in files of about one size."""
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    limit = sum(sizes.values()) / SHARDS
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    before = 0
    for name, shape in shapes.items():
        if before >= limit * len(shards):
            shards.append({})
        shards[-1][name] = shape
        before += sizes[name]
    return shards


def _write_shards(
    directory: Path,
    shards: list[dict[str, tuple[int, ...]]],
    draw: Draw,
    dtype: str,
    progress: Progress | None,
) -> int:
    """Writes the shards and their index; returns the bytes of weights."""
    placed: dict[str, str] = {}
    written, total = 0, sum(map(len, shards))
    for number, shapes in enumerate(shards, 1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with (directory / file_name).open("wb") as file:
            write_header(file, shapes, STORED[dtype])
            for name, shape in shapes.items():
                chunks = draw(name, shape)
                written += write_rows(file, (to_bf16(c) if dtype == "bf16" else c for c in chunks))
                placed[name] = file_name
                if progress is not None:
                    progress(len(placed), total)
    index = {"metadata": {"total_size": written}, "weight_map": placed}
    (directory / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    return written


def byte_tokenizer(directory: Path, vocab: int) -> None:
    """Write tokenizer files whose tokens are the 256 bytes and a begin and an end token.

    `vocab` is the size of the model's vocabulary; ids behind them have no text. Raises UserError
    when it has no room for them.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    if vocab <= EOS:
        raise UserError(f"A vocabulary of {vocab} has no room for {BYTE_TOKENS} bytes and 2 ends.")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    assert (backend.token_to_id("<s>"), backend.token_to_id("</s>")) == (BOS, EOS)
    backend.save(str(directory / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(named, indent=2), encoding="utf-8")
