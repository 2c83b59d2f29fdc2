"""Small checkpoints that transformers itself wrote, and its logits: what the families are held to.
Ours run on the one program of every op, so that no family is compiled on its own."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from mkport.engine import target as target_module
from mkport.engine.decoder import Decoder
from mkport.engine.load import LoadedModel, load
from mkport.engine.synth import byte_tokenizer
from mkport.models import step
from mkport.models.sizes import TINY
from mkport.plan import Graph
from mkport.testing import tiny
from mkport.testing.law import EPS, Measured, measure

Logits = list[np.ndarray]  # of each sequence, float32 [tokens, vocabulary]


def fields_of(family: str, **changes: Any) -> dict[str, Any]:
    """The family's tiny config with `changes`; ... removes a field."""
    fields = dict(TINY[family]) | changes
    return {name: value for name, value in fields.items() if value is not ...}


def models_in(folders: pytest.TempPathFactory) -> Callable[[str], LoadedModel]:
    """What makes a family's tiny float32 checkpoint, by transformers, and loads it, once each."""

    @cache
    def loaded(family: str) -> LoadedModel:
        return load(str(save(folders.mktemp(family) / "model", fields_of(family))))

    return loaded


def save(directory: Path, fields: dict[str, Any], seed: int = 0) -> Path:
    """Lets transformers write a random float32 checkpoint, with weights of a healthy spread."""
    torch.manual_seed(seed)
    kind = fields["model_type"]
    config = transformers.AutoConfig.for_model(**{"model_type": kind} | fields)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.normal_(1.0, 0.1)
            else:
                wide = name.endswith(("embed_tokens.weight", "lm_head.weight", "gate.weight"))
                weight.normal_(0.0, (2.0 if wide else 1.0) * weight.shape[-1] ** -0.5)
    model.save_pretrained(directory)
    byte_tokenizer(directory, fields["vocab_size"])
    return directory


@contextmanager
def one_program() -> Iterator[None]:
    """Has every model's step composed as a part of the library's program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "Graph", partial(Graph, tiny.library()))
        patch.setattr(
            target_module, "compose_cpu", lambda ops, weights, cache, title: tiny.program(weights)
        )
        yield


@contextmanager
def opened(model: LoadedModel | Path, **sizes: Any) -> Iterator[Decoder]:
    """A decoder with the logits of all rows, on the shared program."""
    loaded = load(str(model)) if isinstance(model, Path) else model
    with one_program(), Decoder(loaded, workers=2, all_logits=True, **sizes) as decoder:
        yield decoder


def prompt_logits(decoder: Decoder, prompts: Sequence[Sequence[int]]) -> Logits:
    """Logits after every token of every prompt, each run chunk by chunk as its own sequence."""
    found: Logits = []
    for sequence, ids in enumerate(prompts):
        parts = []
        for first in range(0, len(ids), decoder.chunk):
            part = ids[first : first + decoder.chunk]
            rows = [(sequence, first + i, token) for i, token in enumerate(part)]
            parts.append(decoder.step(rows, range(len(part)))[1].copy())
        found.append(np.concatenate(parts))
    return found


def continued(
    decoder: Decoder, prompts: Sequence[Sequence[int]], tokens: int
) -> tuple[list[list[int]], Logits]:
    """Greedy continuations, all prompts side by side: the ids, and the logits of every position."""
    logits = [[rows] for rows in prompt_logits(decoder, prompts)]
    ids = [
        [*prompt, int(rows[0][-1].argmax())] for prompt, rows in zip(prompts, logits, strict=True)
    ]
    for _ in range(tokens - 1):
        batch = [(i, len(own) - 1, own[-1]) for i, own in enumerate(ids)]
        order = sorted(range(len(batch)), key=lambda i: batch[i][1])
        chosen, rows = decoder.step([batch[i] for i in order], range(len(order)))
        for row, i in enumerate(order):
            ids[i].append(int(chosen[row]))
            logits[i].append(rows[row : row + 1].copy())
    return ids, [np.concatenate(parts) for parts in logits]


def theirs(directory: Path, sequences: Sequence[Sequence[int]], dtype: str) -> Logits:
    """The logits of transformers' own class, in "float64", "float32" or "bfloat16"."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        experts_implementation="eager",
    )
    with torch.no_grad():
        return [model(torch.tensor([list(ids)])).logits[0].double().numpy() for ids in sequences]


def judge(
    directory: Path, sequences: Sequence[Sequence[int]], got: Logits, plain: str = "float32"
) -> Measured:
    """Holds logits of all positions to the tolerance law: transformers in float64 is the truth."""
    truth, rough = (theirs(directory, sequences, kind) for kind in ("float64", plain))
    eps = EPS["float32" if plain == "float32" else "uint16"]
    join = np.concatenate
    return measure(join(got), join(truth), join(rough), eps)


def prompts_of(lengths: Sequence[int], vocab: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths."""
    draw = np.random.default_rng(seed)
    return [draw.integers(0, vocab, length).tolist() for length in lengths]


def edit_config(directory: Path, **changes: Any) -> None:
    """Changes fields of a checkpoint's config.json; ... removes one."""
    path = directory / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in fields.items() if v is not ...}))
