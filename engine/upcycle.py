"""A mixture of experts out of a dense Llama: every expert is the dense feed-forward, the router is
random. Without noise the outputs are the dense model's, since the weights of a token's experts sum
to one; a lost or mis-scaled expert then shows as wrong text.

Source: Komatsuzaki et al., "Sparse Upcycling", 2022.
"""

import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mkport.declare.case import from_bf16
from mkport.engine.gguf_file import Progress
from mkport.engine.jsonfile import read_json
from mkport.engine.load import LoadedModel, load
from mkport.engine.synth import AT_ONCE, Draw, Written, write_checkpoint
from mkport.errors import UserError
from mkport.models.llama import MODEL_TYPE

EXPERTS, TOP = 8, 2

# A tokenizer and what belongs to it, where the dense model has it.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
_FIELDS = (
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "pad_token_id",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
)
_EXPERT = re.compile(r"(.*)\.block_sparse_moe\.experts\.\d+\.(w[123])\.weight")
_DENSE = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def upcycle(
    source: str,
    out_dir: Path,
    noise: float = 0.0,
    dtype: str = "bf16",
    seed: int = 0,
    progress: Progress | None = None,
) -> Written:
    """Write a Mixtral checkpoint of 8 experts, 2 a token, out of a dense Llama.

    `source` is what `mkport run --model` takes; "smollm2" is the demo. `noise` is the standard
    deviation of what is added to every expert's weights, in that of the weights. Raises UserError
    for a source that is no Llama, a noise below zero, and as `write_checkpoint`.
    """
    if not 0 <= noise < 1e3:
        raise UserError(f"A noise of {noise} is not a standard deviation; give 0, or 0.05, say.")
    dense = load(source, dtype)
    if dense.config.model_type != MODEL_TYPE:
        raise UserError(
            f"{dense.directory} is a {dense.config.model_type} model; only a {MODEL_TYPE} can be "
            f"turned into a mixture of experts."
        )
    config = _config(read_json(dense.directory / "config.json"))

    def tokenizer(directory: Path, vocab: int) -> None:
        for name in TOKENIZER_FILES:
            if (dense.directory / name).is_file():
                shutil.copy(dense.directory / name, directory / name)

    draw = _grown(dense, noise, seed)
    return write_checkpoint(out_dir, config, draw, dtype, tokenizer, progress)


def _config(dense: dict[str, Any]) -> dict[str, Any]:
    kept = {name: dense[name] for name in _FIELDS if name in dense}
    return kept | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_experts_per_tok": TOP,
        "num_local_experts": EXPERTS,
        "sliding_window": None,
    }


def _grown(dense: LoadedModel, noise: float, seed: int) -> Draw:
    """Draws a published tensor of the mixture: the dense model's, or a random router."""

    def draw(name: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        if name.endswith("block_sparse_moe.gate.weight"):
            yield rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
            return
        match = _EXPERT.fullmatch(name)
        source = name if match is None else f"{match[1]}.mlp.{_DENSE[match[2]]}.weight"
        array = dense.weights[source]
        values = from_bf16(array) if array.dtype == np.uint16 else array
        spread = np.float32(noise * values.std()) if match is not None and noise else None
        rows = max(AT_ONCE // shape[-1], 1)
        for first in range(0, shape[0], rows):
            part = values[first : first + rows]
            if spread is not None:
                part = part + rng.standard_normal(part.shape, np.float32) * spread
            yield part

    return draw
