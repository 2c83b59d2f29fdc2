"""The model families: one module each, found by the `model_type` of a checkpoint's config.json.
A family says what the config means and which tensors belong to it; it reads no files."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from mkport.errors import UserError
from mkport.models import cohere2, llama, mixtral, qwen3
from mkport.models.base import DecoderConfig

FAMILIES: dict[str, ModuleType] = {
    cohere2.DENSE: cohere2,
    cohere2.MOE: cohere2,
    llama.MODEL_TYPE: llama,
    mixtral.MODEL_TYPE: mixtral,
    qwen3.DENSE: qwen3,
    qwen3.MOE: qwen3,
}


def family_of(config: Mapping[str, Any]) -> ModuleType:
    """The family module of a config.json. Raises UserError for a `model_type` nobody implements."""
    kind = config.get("model_type")
    known = ", ".join(sorted(FAMILIES))
    if kind is None:
        raise UserError(
            f"config.json has no model_type, so its family is unknown. Add one of: {known}."
        )
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(
            f"config.json: the model type {kind!r} is not implemented; the known ones are: "
            f"{known}. Choose a checkpoint of one of these families."
        )
    return FAMILIES[kind]


def parse_config(config: Mapping[str, Any]) -> DecoderConfig:
    """The family's own config object for a config.json, every field read or refused by name. Raises
    UserError for what `family_of` or the family's `from_hf` refuses."""
    parsed: DecoderConfig = family_of(config).CONFIG.from_hf(config)
    return parsed
