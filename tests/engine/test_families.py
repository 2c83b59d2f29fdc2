"""Every family against transformers' own class: logits at every position, greedy text, batches."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from mkport.engine.load import load
from mkport.engine.synth import synthesise
from mkport.models.sizes import TINY
from tests.engine.checkpoints import (
    continued,
    edit_config,
    fields_of,
    judge,
    opened,
    prompt_logits,
    prompts_of,
    save,
    theirs,
)

WINDOW = 24  # of the tiny models: more than a page of 16 keys, less than one of 64
LENGTHS = (7, WINDOW, WINDOW + 1, 3 * WINDOW)
VOCAB = 288

# What a config may ask for beyond what the tiny ones do.
WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("cohere2_moe", {"rms_norm_eps": None}),
    ("cohere2_moe", {"logit_scale": 0.3}),
    ("cohere2_moe", {"num_shared_experts": 2}),
    ("cohere2_moe", {"num_shared_experts": 1, "shared_expert_combination_strategy": "sum"}),
    ("cohere2_moe", {"expert_selection_fn": "softmax"}),
    ("cohere2_moe", {"norm_topk_prob": True}),
    ("cohere2_moe", {"prefix_dense_sliding_window_pattern": 4}),
    ("cohere2_moe", {"layer_types": ...}),
    ("cohere2_moe", {"first_k_dense_replace": 2, "prefix_dense_intermediate_size": None}),
    ("cohere2_moe", {"first_k_dense_replace": ..., "tie_word_embeddings": True}),
    ("qwen3_moe", {"norm_topk_prob": False}),
    ("qwen3_moe", {"mlp_only_layers": [1]}),
    ("qwen3_moe", {"decoder_sparse_step": 2}),
    ("qwen3_moe", WINDOWED),
    ("qwen3", {**WINDOWED, "max_window_layers": 1}),
    ("qwen3", {"tie_word_embeddings": False}),
    ("mixtral", {"sliding_window": WINDOW}),
    ("mixtral", {"tie_word_embeddings": True, "rope_theta": ..., "rms_norm_eps": ...}),
    ("llama", {"rope_scaling": LLAMA3}),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`written(family)`: the family's tiny checkpoint, written by transformers."""
    return cache(lambda family: save(tmp_path_factory.mktemp(family) / "model", fields_of(family)))


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("family", TINY)
def test_logits_of_all_positions_and_greedy_text(written: Any, family: str, page: int) -> None:
    prompts = prompts_of(LENGTHS, VOCAB)
    with opened(written(family), batch=len(prompts), context=256, chunk=64, page=page) as decoder:
        ids, logits = continued(decoder, prompts, 64)
    fed = [own[:-1] for own in ids]
    found = judge(written(family), fed, logits)
    assert found.ok, found
    # fed the same ids, the same choice at each place is the same greedy text
    for own, prompt, rows in zip(
        ids, prompts, theirs(written(family), fed, "float32"), strict=True
    ):
        assert own[len(prompt) :] == rows[len(prompt) - 1 :].argmax(axis=-1).tolist()
    assert len({tuple(own[-64:]) for own in ids}) == len(ids)


@pytest.mark.parametrize(
    ("family", "changes"), VARIANTS, ids=lambda v: v if isinstance(v, str) else ",".join(v)
)
def test_logits_of_what_a_config_may_ask_for(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    directory = save(tmp_path / "model", fields_of(family, **changes))
    prompts = prompts_of([3 * WINDOW], VOCAB)
    with opened(directory, context=128, chunk=64, page=16) as decoder:
        found = judge(directory, prompts, prompt_logits(decoder, prompts))
    assert found.ok, found


@pytest.mark.parametrize("family", TINY)
def test_bf16_checkpoints_of_ours_are_within_the_law(tmp_path: Path, family: str) -> None:
    synthesise(family, "tiny", tmp_path / "model", "bf16")
    prompts = prompts_of([3 * WINDOW], VOCAB)
    with opened(tmp_path / "model", context=128, chunk=64, page=64) as decoder:
        assert decoder.model.weights.dtype == "bf16"
        found = judge(tmp_path / "model", prompts, prompt_logits(decoder, prompts), "bfloat16")
    assert found.ok, found


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("family", TINY)
def test_a_sequence_has_the_same_bits_in_every_batch(written: Any, family: str, page: int) -> None:
    model = load(str(written(family)))
    prompts = prompts_of([3 + 9 * i for i in range(8)], VOCAB)  # up to past a window and a page
    with opened(model, context=128, chunk=64, page=page) as decoder:
        alone = [continued(decoder, [prompt], 6) for prompt in prompts]
    for batch in range(2, 9):
        with opened(model, batch=batch, context=128, chunk=64, page=page) as decoder:
            ids, logits = continued(decoder, prompts[:batch], 6)
        for i in range(batch):
            assert ids[i] == alone[i][0][0]
            np.testing.assert_array_equal(logits[i], alone[i][1][0])


def test_a_token_of_nan_stays_in_its_row(tmp_path: Path) -> None:
    """NaN in the embedding of one token: that row says -1, its batch mates do not notice."""
    import torch
    from safetensors.torch import load_file, save_file

    directory = save(tmp_path / "model", fields_of("qwen3_moe"))
    file = directory / "model.safetensors"
    tensors = load_file(file)
    step = [(0, 0, 5), (1, 0, 6), (2, 0, 7)]
    with opened(directory, batch=3, context=64, chunk=16, page=16) as decoder:
        chosen, logits = (got.copy() for got in decoder.step(step, [0, 1, 2]))
    tensors["model.embed_tokens.weight"][6] = torch.nan
    save_file(tensors, file, {"format": "pt"})
    with opened(directory, batch=3, context=64, chunk=16, page=16) as decoder:
        now, rows = decoder.step(step, [0, 1, 2])
        assert now.tolist() == [chosen[0], -1, chosen[2]]
        np.testing.assert_array_equal(rows[[0, 2]], logits[[0, 2]])
        assert np.isnan(rows[1]).all()


def test_class_defaults_are_not_the_published_values(tmp_path: Path) -> None:
    """Fields left out take the class's values, which differ from the published checkpoint's."""
    directory = save(tmp_path / "model", fields_of("cohere2_moe"))
    prompts = prompts_of([20], VOCAB)
    edit_config(directory, expert_selection_fn=..., norm_topk_prob=..., logit_scale=...)
    with opened(directory, context=64, chunk=64, page=16) as decoder:
        found = judge(directory, prompts, prompt_logits(decoder, prompts))
    assert found.ok, found
