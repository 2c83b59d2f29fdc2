"""Perplexity of the bundled text under the demo model: ours and transformers', both in bfloat16."""

from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
import transformers

from mkport.engine.decoder import Decoder
from mkport.engine.evaluate import CORPUS, WINDOW, perplexity
from mkport.engine.load import load


def theirs(directory: Path, ids: list[int]) -> float:
    """The same definition with transformers' model: windows that start afresh, float64 softmax."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, local_files_only=True
    ).eval()
    losses = []
    for first in range(0, len(ids), WINDOW):
        part = torch.tensor(ids[first : first + WINDOW])
        if len(part) < 2:
            continue
        with torch.inference_mode():
            logits = model(part[None]).logits[0, :-1].double()
        losses.append(torch.nn.functional.cross_entropy(logits, part[1:], reduction="none"))
    return float(torch.cat(losses).mean().exp())


@pytest.mark.slow
def test_perplexity_in_bfloat16_is_that_of_transformers(demo_f32: Path) -> None:
    model = load(str(demo_f32), "bf16")
    ids = model.tokenizer.encode(CORPUS.read_text(encoding="utf-8"), add_special=False)
    with Decoder(model, context=WINDOW, all_logits=True) as decoder:
        ours = perplexity(decoder, ids)
    assert model.weights.dtype == "bf16" and ours.tokens == len(ids)
    assert ours.perplexity == pytest.approx(theirs(demo_f32, ids), rel=1e-3)
