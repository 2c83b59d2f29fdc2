"""Reading a checkpoint's config.json so that no field is ever ignored by accident. What the fields
mean is known to each model family, not here."""

from collections.abc import Collection, Mapping
from typing import Any

from mkport.errors import UserError

# Fields that say nothing about the arithmetic of a decode step.
METADATA = frozenset(
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "label2id",
        "model_type",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)

# Kinds of attention in a list of layer types.
FULL, SLIDING = "full_attention", "sliding_attention"

# Fields of the base class that change the model unless they hold one of these values.
BASE_FIXED: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "output_attentions": (False, None),
    "output_hidden_states": (False, None),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "tie_encoder_decoder": (False,),
}


def refuse_unknown(
    config: Mapping[str, Any],
    implemented: Collection[str],
    fixed: Mapping[str, tuple[Any, ...]],
    family: str,
) -> None:
    """Raise UserError naming the fields of `config` that the family does not implement.

    `implemented` are the fields the family reads; `fixed` maps a field to the only values it may
    hold. Metadata and the base class's own fields are known here.
    """
    allowed = {**BASE_FIXED, **fixed}
    wrong = [name for name, value in config.items() if value not in allowed.get(name, (value,))]
    known = {*allowed, *implemented, *METADATA}
    strange = [name for name in config if name not in known]
    if not wrong and not strange:
        return
    parts = []
    if wrong:
        wanted = [
            f"{name} = {config[name]!r} (only {' or '.join(map(repr, allowed[name]))} is)"
            for name in wrong
        ]
        parts.append(f"{', '.join(wanted)} is not implemented for the {family} family.")
    if strange:
        fields = ", ".join(f"{name!r} (= {config[name]!r})" for name in strange)
        parts.append(
            f"The field {fields} is not implemented for the {family} family, and ignoring it could "
            f"give wrong numbers; remove it if you know that it changes nothing."
        )
    raise UserError(f"config.json: {' '.join(parts)} Or use a checkpoint without it.")


def whole(
    config: Mapping[str, Any],
    name: str,
    default: int | None = None,
    multiple_of: int = 1,
    at_most: int | None = None,
) -> int:
    """The positive whole number in field `name`; `default` when absent or null.

    Raises UserError when it is missing without a default, not a positive whole number, or not a
    multiple of `multiple_of`, or more than `at_most`.
    """
    value = config.get(name)
    if value is None:
        if default is None:
            raise UserError(f"config.json: the field {name!r} is missing. Add it.")
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise UserError(f"config.json: {name} = {value!r} must be a positive whole number.")
    if at_most is not None and value > at_most:
        raise UserError(
            f"config.json: {name} = {value} is not implemented: there can be {at_most} at most."
        )
    if value % multiple_of:
        raise UserError(
            f"config.json: {name} = {value} is not implemented: it must be a multiple of "
            f"{multiple_of}, the width of the machine's vectors. Use a checkpoint of another size."
        )
    return value


def either(config: Mapping[str, Any], first: str, second: str, default: int) -> int:
    """As `whole`, for a number that goes by two names. Raises UserError where they disagree."""
    one, other = config.get(first), config.get(second)
    if one is not None and other is not None and one != other:
        raise UserError(
            f"config.json: {first} = {one} and {second} = {other} disagree. Remove the one that is "
            f"wrong."
        )
    return whole(config, first if other is None else second, default)


def natural(config: Mapping[str, Any], name: str, default: int) -> int:
    """As `whole`, but zero is allowed. Raises UserError for anything else."""
    value = config.get(name)
    value = default if value is None else value
    return 0 if value == 0 and not isinstance(value, bool) else whole(config, name, default)


def choice(config: Mapping[str, Any], name: str, allowed: Collection[str], default: str) -> str:
    """The text in field `name`; `default` when absent or null. Raises UserError unless allowed."""
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, str) or value not in allowed:
        raise UserError(
            f"config.json: {name} = {value!r} is not implemented; {' and '.join(allowed)} are. Use "
            f"a checkpoint with one of these."
        )
    return value


def layer_kinds(
    config: Mapping[str, Any],
    name: str,
    layers: int,
    allowed: Collection[str],
    default: tuple[str, ...],
) -> tuple[str, ...]:
    """The list in field `name`, one kind a layer; `default` when absent or null. Raises UserError
    for one of another length, or with a kind that is not `allowed`."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, list) or len(value) != layers:
        raise UserError(f"config.json: {name} = {value!r} must be a list of {layers} kinds.")
    for kind in value:
        if kind not in allowed:
            raise UserError(
                f"config.json: {name} holds {kind!r}, which is not implemented; "
                f"{' and '.join(allowed)} are. Use a checkpoint without it."
            )
    return tuple(value)


def positive(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """The positive number, below 1e30, in field `name`; `default` when absent or null. Raises
    UserError for anything else, and where it is absent without a default."""
    value = config.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise UserError(f"config.json: {name} = {value!r} must be a positive number.")
    return float(value)


def flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    """The true or false in field `name`; `default` when absent or null. Raises UserError for
    anything else."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise UserError(f"config.json: {name} = {value!r} must be true or false.")
    return value


def token_ids(config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """The token ids in field `name`: one, a list, or null for none. Raises UserError for anything
    else."""
    value = config.get(name)
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise UserError(f"config.json: {name} = {value!r} must be a token id or a list of them.")
    return tuple(ids)
