"""What a GGUF file of the llama architecture says, in Hugging Face's words: its metadata as a
config.json, its tensors under their names there. Bytes are not touched here.

Source: ggml's docs/gguf.md and llama.cpp's convert_hf_to_gguf.py, read backwards.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from mkport.errors import UserError
from mkport.models import llama

# GGUF metadata of the llama architecture -> config.json field
_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
# Read by `config_of` in their own way
_CHECKED = {
    "attention.value_length",
    "expert_count",
    "expert_used_count",
    "rope.dimension_count",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "vocab_size",
}
_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def _short(number: Any) -> Any:
    """A float32 by the shortest decimal that names it: 1e-05, not 9.999999747378752e-06. Anything
    else as it is."""
    return float(str(np.float32(number))) if isinstance(number, float) else number


def config_of(path: Path, meta: Mapping[str, Any], tensor_names: list[str]) -> dict[str, Any]:
    """The config.json that says what the GGUF metadata says. Raises UserError for another
    architecture than llama, and for a key or a value that a config.json of it cannot say."""
    arch = meta.get("general.architecture")
    if arch != llama.MODEL_TYPE:
        raise UserError(
            f"{path}: the GGUF architecture {arch!r} is not implemented; only "
            f"{llama.MODEL_TYPE!r} is. Use the model's safetensors checkpoint if its family is "
            f"known."
        )
    prefix = f"{arch}."
    own = {key.removeprefix(prefix): v for key, v in meta.items() if key.startswith(prefix)}
    for key, value in own.items():
        if key not in _FIELDS and key not in _CHECKED:
            raise _refused(path, f"{prefix}{key} = {value!r}")
    if own.get("expert_count"):
        raise _refused(path, f"{prefix}expert_count = {own['expert_count']}")
    config: dict[str, Any] = {"model_type": arch, "architectures": ["LlamaForCausalLM"]}
    for key, name in _FIELDS.items():
        if key in own:
            config[name] = _short(own[key])
    config["hidden_act"] = "silu"
    config["vocab_size"] = own.get("vocab_size")
    if config["vocab_size"] is None and isinstance(meta.get("tokenizer.ggml.tokens"), list):
        config["vocab_size"] = len(meta["tokenizer.ggml.tokens"])
    config["tie_word_embeddings"] = "output.weight" not in tensor_names
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        config[f"{name}_token_id"] = meta.get(f"tokenizer.ggml.{key}_token_id")
    scaling = own.get("rope.scaling.type", "none")
    if scaling == "linear":
        factor = _short(own.get("rope.scaling.factor", 1.0))
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif scaling != "none":
        raise _refused(path, f"{prefix}rope.scaling.type = {scaling!r}")
    try:
        parsed = llama.LlamaConfig.from_hf(config)
    except UserError as error:  # its words are config.json's, which the user has not seen
        raise UserError(f"{path}, read as a config.json: {error}") from error
    for key in ("rope.dimension_count", "attention.value_length"):
        if own.get(key, parsed.head_dim) != parsed.head_dim:
            raise _refused(path, f"{prefix}{key} = {own[key]} for heads of {parsed.head_dim}")
    return config


def _refused(path: Path, what: str) -> UserError:
    return UserError(
        f"{path}: {what} is not implemented, and ignoring it could give wrong numbers. Use the "
        f"model's safetensors checkpoint, or another GGUF file of it."
    )


def _hf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None when it has none."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _TENSORS and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_TENSORS[parts[2]]}.weight"
    return _OUTER.get(name)


def match_tensors(
    path: Path, reader: gguf.GGUFReader, config: llama.LlamaConfig
) -> dict[str, gguf.ReaderTensor]:
    """The GGUF's tensors by Hugging Face name: all that the model needs, and no other. Raises
    UserError naming a tensor that is unknown, missing or of another shape than the config's."""
    shapes = llama.tensor_shapes(config)
    found: dict[str, gguf.ReaderTensor] = {}
    for tensor in reader.tensors:
        name = _hf_name(tensor.name)
        if name not in shapes:
            raise _refused(path, f"the tensor {tensor.name}")
        shape = tuple(int(n) for n in reversed(tensor.shape))
        if shape != shapes[name]:
            raise UserError(
                f"{path}: the tensor {tensor.name} is {list(shape)}, but the file's own metadata "
                f"makes it {list(shapes[name])}. The file is damaged: fetch it again."
            )
        found[name] = tensor
    missing = [name for name in shapes if name not in found]
    if missing:
        raise UserError(
            f"{path} lacks the tensor for {missing[0]} ({len(missing)} missing in all). The file "
            f"is incomplete: fetch it again."
        )
    return found
