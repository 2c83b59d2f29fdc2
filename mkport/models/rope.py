"""Rotary position tables: the frequencies of a checkpoint's config and their cosines and sines.
How the table is applied (half-split or interleaved pairs) is an op's business, not this module's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mkport.errors import UserError
from mkport.models.fields import positive

DEFAULT_THETA = 10000.0

# The keys each scaling rule reads, beside its name and theta.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


@dataclass(frozen=True)
class RopeScaling:
    """How the rotary frequencies are changed for a longer context."""

    kind: str  # "linear" or "llama3"
    factor: float  # the frequencies are divided by this
    low_freq_factor: float = 0.0  # llama3: waves longer than original_context / this are divided
    high_freq_factor: float = 0.0  # llama3: waves shorter than original_context / this are kept
    original_context: float = 0.0  # llama3: positions the model was first trained on


def parse_rope(
    config: Mapping[str, Any], context: int, default_theta: float = DEFAULT_THETA
) -> tuple[float, RopeScaling | None]:
    """Theta and scaling of a config.json, in its old form (`rope_theta`, `rope_scaling`) or its new
    one (`rope_parameters`). `context` is the default of llama3's original context, in positions.

    Raises UserError for a rule or a key that is not implemented, for numbers that are none, and
    where the two forms disagree. Source: transformers' modeling_rope_utils.py.
    """
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    if old and new and old != new:
        raise UserError(
            "config.json: rope_scaling and rope_parameters disagree. Remove the one that is wrong."
        )
    field = "rope_scaling" if old else "rope_parameters"
    rope = old or new or {}
    if not isinstance(rope, dict):
        raise UserError(f"config.json: {field} = {rope!r} must be an object.")
    outer = positive(config, "rope_theta", default_theta)
    theta = positive(rope, "rope_theta", outer)
    if config.get("rope_theta") is not None and theta != outer:
        raise UserError(
            f"config.json: rope_theta is {outer} outside {field} and {theta} inside it. "
            f"Remove the one that is wrong."
        )
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in _KEYS:
        raise UserError(
            f"config.json: the rope type {kind!r} in {field} is not implemented; "
            f"{', '.join(_KEYS)} are. Use a checkpoint without it."
        )
    for key, value in rope.items():
        neutral = key == "partial_rotary_factor" and value in (None, 1)
        if key not in ("rope_type", "type", "rope_theta", *_KEYS[kind]) and not neutral:
            raise UserError(
                f"config.json: {field}.{key} = {value!r} is not implemented for the rope type "
                f"{kind!r}. Use a checkpoint without it."
            )
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", positive(rope, "factor"))
    scaling = RopeScaling(
        "llama3",
        positive(rope, "factor"),
        positive(rope, "low_freq_factor"),
        positive(rope, "high_freq_factor"),
        positive(rope, "original_max_position_embeddings", context),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise UserError(
            f"config.json: {field}.high_freq_factor = {scaling.high_freq_factor} must be larger "
            f"than low_freq_factor = {scaling.low_freq_factor}."
        )
    return theta, scaling


def inverse_frequencies(dim: int, theta: float, scaling: RopeScaling | None) -> np.ndarray:
    """Radians a position for each rotated pair, float32 [dim / 2].

    The steps and their float32 roundings are those of transformers, which divides a number by a
    tensor as a multiplication by the reciprocal. The power itself is taken in float64 and rounded
    once, so it does not depend on the platform's float32 power.

    Source: Su et al., "RoFormer", 2021; "linear" is Chen et al., "Extending Context Window of Large
    Language Models via Position Interpolation", 2023; "llama3" is `apply_scaling` of Meta's Llama
    3.1; all as in transformers' modeling_rope_utils.py.
    """
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    one = np.float32(1)
    inv = one / np.power(np.float64(theta), exponent.astype(np.float64)).astype(np.float32)
    if scaling is None:
        return inv
    factor = np.float32(scaling.factor)
    if scaling.kind == "linear":
        return inv / factor
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelength = (one / inv) * np.float32(2 * math.pi)  # in positions
    long = wavelength > np.float32(scaling.original_context / low)
    short = wavelength < np.float32(scaling.original_context / high)
    scaled = np.where(long, inv / factor, inv)
    smooth = (one / wavelength) * np.float32(scaling.original_context) - np.float32(low)
    smooth = smooth / np.float32(high - low)
    blended = (one - smooth) * scaled / factor + smooth * scaled
    return np.where(long | short, scaled, blended)


def rope_table(inverse: np.ndarray, positions: int) -> np.ndarray:
    """Cosines, then sines, of positions 0..positions-1: float32 [positions, 2 * pairs]; `inverse`
    float32 [pairs] is in radians a position.

    The angle is the float32 product of position and frequency, as in transformers; its cosine and
    sine are taken in float64 and rounded once, so every platform gets the same table.
    """
    # [positions, pairs]
    angle = np.arange(positions, dtype=np.float32)[:, None] * inverse.astype(np.float32)[None, :]
    exact = angle.astype(np.float64)
    table = np.empty((positions, 2 * len(inverse)), dtype=np.float32)
    table[:, : len(inverse)] = np.cos(exact)
    table[:, len(inverse) :] = np.sin(exact)
    return table
