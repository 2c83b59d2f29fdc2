"""Configs of every family in a few sizes, as a checkpoint's config.json would hold them: `tiny` for
tests, `small` (about 1 GB) for measurements on a CPU, `full` as published. No weights."""

from collections.abc import Mapping
from typing import Any

from mkport.errors import UserError
from mkport.models.fields import FULL as FULL_ATTENTION
from mkport.models.fields import SLIDING

Fields = dict[str, Any]

BYTE_TOKENS = 256
BOS, EOS = 256, 257  # behind the bytes, in the vocabulary of the tokenizer that is written

_ENDS: Fields = {"bos_token_id": BOS, "eos_token_id": EOS}
_TINY: Fields = _ENDS | {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "vocab_size": 288,
}
_SMALL: Fields = _ENDS | {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "vocab_size": 32768,
}


def _sliding(layers: int) -> list[str]:
    """North Mini Code's pattern: layers 0, 4, 8, ... see everything."""
    return [SLIDING if i % 4 else FULL_ATTENTION for i in range(layers)]


_COHERE_MOE: Fields = {
    "model_type": "cohere2_moe",
    "architectures": ["Cohere2MoeForCausalLM"],
    "attention_bias": False,
    "expert_selection_fn": "sigmoid",
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-5,
    "logit_scale": 1.0,
    "norm_topk_prob": False,
    "num_shared_experts": 0,
    "prefix_dense_sliding_window_pattern": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000,
    "tie_word_embeddings": True,
}
_COHERE: Fields = {
    "model_type": "cohere2",
    "architectures": ["Cohere2ForCausalLM"],
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.25,
    "rope_theta": 50000,
    "sliding_window_pattern": 4,
    "tie_word_embeddings": True,
}
_LLAMA: Fields = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000,
    "tie_word_embeddings": True,
}
_MIXTRAL: Fields = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "hidden_act": "silu",
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
_QWEN: Fields = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
}
_QWEN_MOE: Fields = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 1,
    "hidden_act": "silu",
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": False,
}


def _layers(layers: int, ffn: int, **more: Any) -> Fields:
    return {"num_hidden_layers": layers, "intermediate_size": ffn} | more


def _mixture(experts: int, top: int, **more: Any) -> Fields:
    return {"num_experts": experts, "num_experts_per_tok": top} | more


TINY: Mapping[str, Fields] = {
    "cohere2": _COHERE | _TINY | _layers(4, 96, sliding_window=24),
    "cohere2_moe": _COHERE_MOE
    | _TINY
    | _layers(5, 48, layer_types=_sliding(5), sliding_window=24)
    | _mixture(8, 3, prefix_dense_intermediate_size=80),
    "llama": _LLAMA | _TINY | _layers(2, 112),
    "mixtral": _MIXTRAL | _TINY | _layers(2, 48),
    "qwen3": _QWEN | _TINY | _layers(2, 96),
    "qwen3_moe": _QWEN_MOE | _TINY | _layers(2, 96) | _mixture(8, 3, moe_intermediate_size=48),
}

SMALL: Mapping[str, Fields] = {
    "cohere2": _COHERE | _SMALL | _layers(16, 8192, sliding_window=1024),
    "cohere2_moe": _COHERE_MOE
    | _SMALL
    | _layers(10, 256, layer_types=_sliding(10), sliding_window=1024)
    | _mixture(64, 8, prefix_dense_intermediate_size=1024),
    "llama": _LLAMA | _SMALL | _layers(16, 8192),
    "mixtral": _MIXTRAL | _SMALL | _layers(9, 2048),
    "qwen3": _QWEN | _SMALL | _layers(16, 8192),
    "qwen3_moe": _QWEN_MOE | _SMALL | _layers(9, 1024) | _mixture(64, 8, moe_intermediate_size=256),
}

FULL: Mapping[str, Fields] = {
    # North Mini Code 1.0
    "cohere2_moe": _COHERE_MOE
    | {
        "attention_dropout": 0.0,
        "bos_token_id": 5,
        "eos_token_id": 255001,
        "head_dim": 128,
        "hidden_size": 2048,
        "max_position_embeddings": 262144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "pad_token_id": 0,
        "use_parallel_block": True,
        "use_qk_norm": False,
        "vocab_size": 262144,
    }
    | _layers(49, 768, layer_types=_sliding(49), sliding_window=4096)
    | _mixture(128, 8, prefix_dense_intermediate_size=3072),
    # Llama-3.2-1B
    "llama": _LLAMA
    | {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "head_dim": 64,
        "hidden_size": 2048,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "vocab_size": 128256,
    }
    | _layers(16, 8192),
    # Qwen3-30B-A3B
    "qwen3_moe": _QWEN_MOE
    | {
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_size": 2048,
        "max_position_embeddings": 40960,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 151936,
    }
    | _layers(48, 6144)
    | _mixture(128, 8, moe_intermediate_size=768),
}

SIZES: Mapping[str, Mapping[str, Fields]] = {"tiny": TINY, "small": SMALL, "full": FULL}


def config_of(family: str, size: str) -> Fields:
    """A copy of a family's config in a size. Raises UserError when there is none."""
    if size not in SIZES:
        raise UserError(f"There is no size {size!r}; the sizes are {', '.join(SIZES)}.")
    if family not in SIZES[size]:
        raise UserError(
            f"There is no {size} model of the family {family!r}; there is one of: "
            f"{', '.join(SIZES[size])}."
        )
    return dict(SIZES[size][family])
