"""A plain reference of a Llama's logits in NumPy: no cache pages, no tiles, no schedule.

It reads top to bottom as the formulas do, one sequence at a time, and is what a whole step is held
to. Formulas: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary embedding), Zhang and Sennrich
2019 (RMSNorm).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from mkport.declare.case import from_bf16, to_bf16
from mkport.errors import UserError
from mkport.models.base import DecoderConfig, rope_table
from mkport.models.llama import MODEL_TYPE
from mkport.testing.law import EPS, Measured, measure


def logits(
    config: DecoderConfig,
    weights: Mapping[str, np.ndarray],
    ids: Sequence[int],
    kind: type[np.floating] = np.float64,
    cache: str = "f32",
) -> np.ndarray:
    """The logits after every token of one sequence: `kind` [tokens, vocabulary].

    `weights` holds the checkpoint's tensors (bfloat16 as uint16). All arithmetic is in `kind`;
    keys and values are rounded to the storage type `cache` before they are used. Raises UserError
    for a model of another family.
    """
    if config.model_type != MODEL_TYPE:
        raise UserError(f"The reference knows {MODEL_TYPE} models, not {config.model_type} ones.")

    def weight(name: str) -> np.ndarray:
        array = weights[name]
        return (from_bf16(array) if array.dtype == np.uint16 else array).astype(kind)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        mean = np.mean(x * x, axis=-1, keepdims=True, dtype=kind)
        return x / np.sqrt(mean + kind(config.norm_eps)) * weight(name)

    table = rope_table(config, len(ids)).astype(kind)
    cos, sin = np.split(table[:, None, :], 2, axis=-1)  # [tokens, 1, head_dim / 2]
    embedding = weight("model.embed_tokens.weight")
    x = embedding[list(ids)]  # [tokens, hidden]
    for layer in range(config.layers):
        block = f"model.layers.{layer}"
        h = norm(x, f"{block}.input_layernorm.weight")
        q, k, v = (
            (h @ weight(f"{block}.self_attn.{part}_proj.weight").T).reshape(
                len(ids), -1, config.head_dim
            )
            for part in "qkv"
        )  # [tokens, heads, head_dim]
        k, v = _stored(_rotate(k, cos, sin), cache), _stored(v, cache)
        a = _attention(_rotate(q, cos, sin), k, v)
        x = x + a @ weight(f"{block}.self_attn.o_proj.weight").T
        h = norm(x, f"{block}.post_attention_layernorm.weight")
        gate = h @ weight(f"{block}.mlp.gate_proj.weight").T
        up = h @ weight(f"{block}.mlp.up_proj.weight").T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weight(f"{block}.mlp.down_proj.weight").T
    h = norm(x, "model.norm.weight")
    return h @ (embedding if config.tied else weight("lm_head.weight")).T


def judge_logits(
    config: DecoderConfig,
    weights: Mapping[str, np.ndarray],
    ids: Sequence[int],
    cache: str,
    got: np.ndarray,
) -> Measured:
    """Holds a step's logits, float32 [tokens, vocabulary], to the tolerance law.

    The truth is the reference in float64 with an exact cache; what may go wrong is twice what goes
    wrong in plain float32 NumPy with the same cache type.
    """
    truth = logits(config, weights, ids)
    plain = logits(config, weights, ids, np.float32, cache)
    return measure(got, truth, plain, EPS["float32"])


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotates the pairs (i, i + head_dim / 2) of x [tokens, heads, head_dim]."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _stored(x: np.ndarray, cache: str) -> np.ndarray:
    """What comes back out of a cache of this storage type."""
    return from_bf16(to_bf16(x)).astype(x.dtype) if cache == "bf16" else x


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention with grouped heads: q [tokens, heads, head_dim] -> [tokens, width]."""
    tokens, heads, head_dim = q.shape
    k, v = (np.repeat(part, heads // k.shape[1], axis=1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * q.dtype.type(head_dim**-0.5)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    share = np.exp(scores - scores.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", share, v).reshape(tokens, -1)
