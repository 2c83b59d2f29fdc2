"""The plain reference agrees with transformers in float64, and a wrong step is not lawful."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mkport.declare.case import from_bf16, to_bf16
from mkport.models.llama import LlamaConfig, tensor_shapes
from mkport.models.rope import RopeScaling
from mkport.testing import tiny
from mkport.testing.reference import judge_logits, logits

IDS = [5, 70, 3, 3, 41, 0, 76, 12, 9]
TIED = replace(tiny.LLAMA, heads=4)
UNTIED = replace(TIED, tied=False, rope_scaling=RopeScaling("linear", 4.0))
CONFIGS = {"tied": TIED, "untied, scaled": UNTIED}


def _weights(config: LlamaConfig) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        name: (draw.standard_normal(shape) / np.sqrt(shape[-1]) + (len(shape) == 1)).astype("f4")
        for name, shape in tensor_shapes(config).items()
    }


def _transformers(config: LlamaConfig, weights: dict[str, np.ndarray]) -> np.ndarray:
    import torch
    from transformers import LlamaConfig as HfConfig
    from transformers import LlamaForCausalLM

    scaling: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling:
        scaling = {"rope_type": "linear", "factor": config.rope_scaling.factor}
    model = LlamaForCausalLM(
        HfConfig(
            hidden_size=config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.ffn,
            vocab_size=config.vocab,
            rms_norm_eps=config.norm_eps,
            max_position_embeddings=config.context,
            tie_word_embeddings=config.tied,
            rope_parameters={**scaling, "rope_theta": config.rope_theta},
            attn_implementation="eager",
        )
    ).double()
    state = {name: torch.from_numpy(array).double() for name, array in weights.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    with torch.no_grad():
        return np.asarray(model(torch.tensor([IDS])).logits[0].numpy())


@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_agrees_with_transformers(name: str) -> None:
    config = CONFIGS[name]
    weights = _weights(config)
    ours, theirs = logits(config, weights, IDS), _transformers(config, weights)
    assert ours.dtype == np.float64 and ours.shape == (len(IDS), config.vocab)
    # both rotate by float32 cosines and softmax or normalise in float32 somewhere
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_bfloat16_weights_are_widened() -> None:
    narrow = {name: to_bf16(array) for name, array in _weights(tiny.LLAMA).items()}
    wide = {name: from_bf16(array) for name, array in narrow.items()}
    np.testing.assert_array_equal(logits(tiny.LLAMA, narrow, IDS), logits(tiny.LLAMA, wide, IDS))


def test_a_lawful_step_passes_and_a_wrong_one_does_not() -> None:
    weights = _weights(tiny.LLAMA)
    plain = logits(tiny.LLAMA, weights, IDS, np.float32, "bf16")
    assert judge_logits(tiny.LLAMA, weights, IDS, "bf16", plain).ok
    wrong = plain.copy()
    wrong[4, 7] += 0.05
    found = judge_logits(tiny.LLAMA, weights, IDS, "bf16", wrong)
    assert not found.ok and found.where == (4, 7)
    assert not judge_logits(tiny.LLAMA, weights, IDS, "f32", plain).ok  # its cache was bfloat16
