"""A Llama config.json is read whole: every field counts or is refused by name."""

import copy
from typing import Any

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.models import family_of, llama, parse_config, rope

Config = dict[str, Any]


def smollm(**changes: Any) -> Config:
    """The fields that SmolLM2's published config.json has, with `changes`; ... removes a field."""
    config: Config = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 576,
        "initializer_range": 0.04,
        "intermediate_size": 1536,
        "is_llama_config": True,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        "transformers_version": "4.42.3",
        "use_cache": True,
        "vocab_size": 49152,
    }
    # copied, because transformers writes into the objects it is given
    return copy.deepcopy({k: v for k, v in (config | changes).items() if v is not ...})


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_every_field_of_a_published_config_is_read() -> None:
    config = parse_config(smollm())
    assert (config.hidden, config.layers, config.heads, config.kv_heads) == (576, 30, 9, 3)
    assert (config.head_dim, config.ffn, config.vocab, config.context) == (64, 1536, 49152, 8192)
    assert (config.norm_eps, config.rope_theta, config.rope_scaling) == (1e-5, 1e5, None)
    assert (config.tied, config.eos_ids, config.bos_id) == (True, (2,), 1)
    assert family_of(smollm()) is llama


def test_absent_fields_take_the_defaults_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 4, "vocab_size": 32}
    theirs = transformers.LlamaConfig(**shape)
    ours = parse_config(shape | {"model_type": "llama"})
    assert ours.kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == theirs.head_dim
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.context == theirs.max_position_embeddings
    assert ours.tied == theirs.tie_word_embeddings
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]


@pytest.mark.parametrize("scaling", [None, {"type": "linear", "factor": 2.0}, LLAMA3])
def test_configs_saved_by_transformers_are_read(scaling: Config | None) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.LlamaConfig(**smollm(rope_scaling=scaling))
    for saved in (theirs.to_diff_dict(), theirs.to_dict()):
        saved.pop("transformers.js_config", None)
        assert "rope_parameters" in saved
        assert parse_config(saved) == parse_config(smollm(rope_scaling=scaling))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt9"}, "'gpt9'"),
        ({"model_type": ...}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map"),
        ({"logit_softcap": 30.0}, "logit_softcap"),
        ({"hidden_size": 570}, "hidden_size"),
        ({"intermediate_size": 1530}, "intermediate_size"),
        ({"head_dim": 72}, "head_dim"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "head_dim"),
        ({"vocab_size": ...}, "vocab_size"),
        ({"num_hidden_layers": "30"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_scaling": {"rope_type": ["x"]}}, "rope_scaling"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "factor"),
        ({"rope_scaling": LLAMA3 | {"beta_fast": 32}}, "beta_fast"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta"),
        ({"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 1e5}}, "rope_parameters"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change: Config, named: str) -> None:
    with pytest.raises(UserError, match=named):
        parse_config(smollm(**change))


def test_an_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="llama"):
        parse_config({"model_type": "mamba"})


@pytest.mark.parametrize("theta", [10000.0, 100000.0, 500000.0, 1000000.0])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 3.0}, LLAMA3])
def test_rope_table_is_that_of_transformers(
    theta: float, head_dim: int, scaling: Config | None
) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    fields = smollm(rope_theta=theta, head_dim=head_dim, rope_scaling=scaling)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**fields))
    config = parse_config(fields)
    inverse = theirs.inv_freq.numpy()
    ours = rope.inverse_frequencies(head_dim, config.rope_theta, config.rope_scaling)
    # torch's own float32 power is sometimes one unit off, which a division can make two
    np.testing.assert_array_max_ulp(ours, inverse, maxulp=2)

    positions = np.arange(4096)
    cos, sin = theirs(torch.zeros(1), torch.from_numpy(positions)[None])
    half = head_dim // 2
    # from equal frequencies the table is equal to one unit in the last place
    table = rope.rope_table(inverse, len(positions))
    np.testing.assert_array_max_ulp(table[:, :half], cos[0, :, :half].numpy(), maxulp=1)
    np.testing.assert_array_max_ulp(table[:, half:], sin[0, :, :half].numpy(), maxulp=1)
    # two units move an angle by less than position * 2^-22 * frequency; rounding it, by a quarter
    whole = llama.rope_table(config, len(positions))
    assert whole.shape == (len(positions), head_dim) and whole.dtype == np.float32
    bound = positions[:, None] * np.concatenate([inverse, inverse]) * 2.0**-21 + 2.0**-23
    assert (np.abs(whole - table) <= bound).all()


@pytest.mark.parametrize("tied", [False, True])
def test_tensor_shapes_are_those_of_transformers(tied: bool) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    fields = smollm(num_hidden_layers=2, vocab_size=64, tie_word_embeddings=tied)
    with torch.device("meta"):
        theirs = LlamaForCausalLM(LlamaConfig(**fields)).state_dict()
    config = parse_config(fields)
    assert isinstance(config, llama.LlamaConfig)
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.items()}
    if tied:
        assert shapes.pop("lm_head.weight") == llama.ignored_shapes(config)["lm_head.weight"]
    assert llama.tensor_shapes(config) == shapes
