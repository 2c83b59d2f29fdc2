"""A small random model on disk, and the command line run in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from typer.testing import CliRunner, Result

from mkport.cli import main
from mkport.declare.case import to_bf16
from mkport.engine.safetensors_file import write_header, write_rows
from mkport.models import llama

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 258,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "eos_token_id": 257,
}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A bfloat16 Llama with random weights and a tokenizer of bytes, as a model directory.

    Its program is the demo model's, so that both share compiled code.
    """
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shapes = llama.tensor_shapes(llama.LlamaConfig.from_hf(CONFIG))
    draw = np.random.default_rng(0)
    with (folder / "model.safetensors").open("wb") as file:
        write_header(file, shapes, "BF16")
        for shape in shapes.values():
            norm = len(shape) == 1
            values = draw.standard_normal(shape) / (1 if norm else np.sqrt(shape[-1]) / 2)
            write_rows(file, [to_bf16(values + norm)])
    vocab = {text: place for place, text in enumerate([*BYTES, "<s>", "</s>"])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def mkport() -> Callable[..., Result]:
    """Runs a verb: `mkport("run", "--json")`, with `input` for its stdin."""

    def run(*args: object, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main.app, [str(arg) for arg in args], input=input)

    return run
