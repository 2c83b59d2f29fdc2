"""A model directory without weights, and weights that are drawn where the model runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from mkport.declare import TensorSpec
from mkport.engine.bench.gpu_inputs import random_tensor
from mkport.engine.cuda_target import CudaTarget, DeviceArrays
from mkport.engine.load import LoadedModel
from mkport.engine.target import Arrays
from mkport.engine.tokenizer import Tokenizer
from mkport.models import family_of, parse_config
from mkport.models.sizes import BOS, BYTE_TOKENS, EOS, config_of

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_config(directory: Path, family: str, size: str) -> None:
    """Makes the directory, with a family's config in it."""
    directory.mkdir(parents=True)
    config = config_of(family, size) | {"bos_token_id": BOS, "eos_token_id": EOS}
    (directory / "config.json").write_text(json.dumps(config))


def write_tokenizer(directory: Path, vocab: int) -> None:
    """A tokenizer in which each id has a text of its own, and a chat template with tools."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {text: i for i, text in enumerate([*alphabet, "<s>", "</s>"])}
    words |= {f"\u0120w{i}": i for i in range(BYTE_TOKENS + 2, vocab)}
    backend = Backend(models.BPE(words, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(directory / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))


def without_weights(directory: Path) -> LoadedModel:
    """The model of a directory that holds none; its weights are only counted."""
    fields = json.loads((directory / "config.json").read_text())
    config, family = parse_config(fields), family_of(fields)
    count = sum(int(np.prod(shape)) for shape in family.tensor_shapes(config).values())
    weights: Any = SimpleNamespace(dtype="bf16", nbytes=2 * count)
    return LoadedModel(config, family, weights, Tokenizer.load(directory), directory)


class Drawn(CudaTarget):
    """The GPU, with random weights."""

    def place(self, model: LoadedModel, specs: Mapping[str, TensorSpec], context: int) -> Arrays:
        """Draws each weight on the device; the rotary table has `context` positions."""
        table = model.family.rope_table(model.config, context)
        seeds = {name: seed for seed, name in enumerate(specs)}

        def draw(model: LoadedModel, spec: TensorSpec, context: int) -> Any:
            return random_tensor(spec, table, seeds[spec.name])

        return DeviceArrays(model, specs, context, draw)
