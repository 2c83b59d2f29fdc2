"""A mixture grown out of a dense model: without noise its outputs are the dense model's, so that a
lost or mis-scaled expert shows; with noise they are those of transformers' Mixtral."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

from mkport.engine.generate import continuation
from mkport.engine.load import load
from mkport.engine.synth import synthesise
from mkport.engine.upcycle import EXPERTS, upcycle
from mkport.errors import UserError
from mkport.testing.law import EPS, measure
from tests.engine.checkpoints import continued, judge, opened, prompt_logits, prompts_of, theirs

PROMPTS = ["The capital of France is", "Once upon a time there was a small dragon who"]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dense") / "model"
    synthesise("llama", "tiny", directory, "f32")
    return directory


def test_without_noise_the_outputs_are_the_dense_models(dense: Path, tmp_path: Path) -> None:
    upcycle(str(dense), tmp_path / "model", dtype="f32")
    prompts = prompts_of([5, 70], 288)
    with opened(tmp_path / "model", batch=2, context=160, chunk=64, page=16) as decoder:
        ids, logits = continued(decoder, prompts, 32)
    with opened(dense, batch=2, context=160, chunk=64, page=16) as decoder:
        assert continued(decoder, prompts, 32)[0] == ids
    found = judge(dense, [own[:-1] for own in ids], logits)
    assert found.ok, found


def test_with_noise_they_are_those_of_transformers(dense: Path, tmp_path: Path) -> None:
    upcycle(str(dense), tmp_path / "model", noise=0.3, dtype="f32")
    prompts = prompts_of([40], 288)
    with opened(tmp_path / "model", context=64, chunk=64, page=16) as decoder:
        got = prompt_logits(decoder, prompts)
        assert judge(tmp_path / "model", prompts, got).ok
        assert not judge(dense, prompts, got).ok


def test_experts_are_copies_and_the_tokenizer_is_kept(dense: Path, tmp_path: Path) -> None:
    upcycle(str(dense), tmp_path / "model", dtype="f32")
    mixture, source = load(str(tmp_path / "model")), load(str(dense))
    down = mixture.weights["model.layers.1.mlp.experts.down_proj"]
    assert len(down) == EXPERTS
    for expert in down:
        np.testing.assert_array_equal(expert, source.weights["model.layers.1.mlp.down_proj.weight"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "model" / name).read_bytes() == (dense / name).read_bytes()
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["model_type"] == "mixtral" and config["rope_theta"] == 500000


def test_noise_has_the_spread_asked_for(dense: Path, tmp_path: Path) -> None:
    upcycle(str(dense), tmp_path / "model", noise=0.5, dtype="f32")
    source = load(str(dense)).weights["model.layers.0.mlp.down_proj.weight"]
    experts = load(str(tmp_path / "model")).weights["model.layers.0.mlp.experts.down_proj"]
    for expert in experts:
        assert 0.47 < (expert - source).std() / source.std() < 0.53


def test_what_cannot_be_grown_is_refused(tmp_path: Path) -> None:
    synthesise("qwen3", "tiny", tmp_path / "qwen")
    with pytest.raises(UserError, match="qwen3"):
        upcycle(str(tmp_path / "qwen"), tmp_path / "model")
    with pytest.raises(UserError, match="-1"):
        upcycle(str(tmp_path / "qwen"), tmp_path / "model", noise=-1)


@pytest.mark.slow
def test_real_text_through_routing(demo_f32: Path, tmp_path: Path) -> None:
    """SmolLM2 as eight equal experts: every logit and every word is the dense model's."""
    upcycle(str(demo_f32), tmp_path / "model", dtype="f32")
    tokenizer = load(str(demo_f32)).tokenizer
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    with opened(tmp_path / "model", batch=2, context=128, chunk=16) as decoder:
        ids, logits = continued(decoder, prompts, 24)
    with opened(demo_f32, batch=2, context=128, chunk=16) as decoder:
        assert ids == continued(decoder, prompts, 24)[0]
    assert " Paris" in tokenizer.decode(ids[0])
    found = judge(demo_f32, [own[:-1] for own in ids], logits)
    assert found.ok, found


@pytest.mark.slow
def test_real_text_with_different_experts(demo_f32: Path, tmp_path: Path) -> None:
    """With noise the experts differ, and routing decides what is said: transformers agrees."""
    upcycle(str(demo_f32), tmp_path / "model", noise=0.05, dtype="bf16")
    tokenizer = load(str(demo_f32)).tokenizer
    prompt = tokenizer.encode(PROMPTS[0])
    model = load(str(tmp_path / "model"))
    with opened(model, context=128, chunk=16) as decoder:
        said = list(continuation(decoder, prompt, 24))
        got = prompt_logits(decoder, [[*prompt, *said]])
    sequences = [[*prompt, *said]]
    truth, plain = (theirs(tmp_path / "model", sequences, kind) for kind in ("float32", "bfloat16"))
    found = measure(got[0], truth[0], plain[0], EPS["uint16"])
    assert found.ok, found
    assert said == truth[0][len(prompt) - 1 : -1].argmax(axis=-1).tolist()
    assert " Paris" in tokenizer.decode(said)
