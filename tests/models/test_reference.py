"""The plain NumPy reference of every family agrees with transformers in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from mkport.engine.load import load
from mkport.models import FAMILIES
from mkport.models.sizes import TINY
from mkport.testing.reference import judge_logits, logits
from mkport.testing.reference.families import BLOCKS
from tests.engine.checkpoints import fields_of, opened, prompt_logits, prompts_of, save, theirs

LENGTH = 40  # longer than the window of the tiny models

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("cohere2_moe", {"rms_norm_eps": None, "logit_scale": 0.3, "num_shared_experts": 2}),
    ("cohere2_moe", {"expert_selection_fn": "softmax"}),
    ("qwen3_moe", {"norm_topk_prob": False, "mlp_only_layers": [1]}),
    ("mixtral", {"sliding_window": 24}),
]


def test_every_family_has_a_reference() -> None:
    assert set(BLOCKS) == set(FAMILIES)


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in TINY), *VARIANTS],
    ids=lambda v: v if isinstance(v, str) else ",".join(v) or "tiny",
)
def test_the_reference_agrees_with_transformers(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    directory = save(tmp_path / "model", fields_of(family, **changes))
    model = load(str(directory))
    (ids,) = prompts_of([LENGTH], model.config.vocab)
    ours = logits(model.config, model.weights, ids)
    assert ours.dtype == np.float64 and ours.shape == (LENGTH, model.config.vocab)
    # both rotate by float32 cosines; theirs norms and routes in float32 inside
    (exact,) = theirs(directory, [ids], "float64")
    np.testing.assert_allclose(ours, exact, atol=2e-6 * np.abs(exact).max())


@pytest.mark.parametrize("family", TINY)
def test_a_step_is_lawful_and_a_wrong_one_is_not(tmp_path: Path, family: str) -> None:
    model = load(str(save(tmp_path / "model", fields_of(family))), "bf16")
    (ids,) = prompts_of([LENGTH], model.config.vocab)
    with opened(model, context=64, chunk=64, page=16) as decoder:
        (got,) = prompt_logits(decoder, [ids])
    assert judge_logits(model.config, model.weights, ids, "bf16", got).ok
    got[LENGTH // 2] += 0.02 * np.abs(got).max()
    assert not judge_logits(model.config, model.weights, ids, "bf16", got).ok
