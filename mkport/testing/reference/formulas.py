"""The formulas of the reference: arrays in, arrays out, in the type of their input. Which model
uses which is not known here."""

import numpy as np

from mkport.models.experts import Experts


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight: x [..., n], weight [n] -> [..., n].

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """
    mean = np.mean(x * x, axis=-1, keepdims=True)
    return x / np.sqrt(mean + x.dtype.type(eps)) * weight


def layer_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """`rms_norm` of x [..., n] less its mean, weight [n], no bias: [..., n].

    Source: Ba, Kiros and Hinton, "Layer Normalization", 2016.
    """
    return rms_norm(x - np.mean(x, axis=-1, keepdims=True), weight, eps)


def rotate(x: np.ndarray, table: np.ndarray, half_split: bool) -> np.ndarray:
    """Rotary embedding of x [tokens, heads, head_dim]: the same shape.

    `table` [tokens, head_dim] holds cosines, then sines. Pairs are (i, i + head_dim / 2) with
    `half_split`, else (2 i, 2 i + 1). Source: Su et al., "RoFormer", 2021.
    """
    cos, sin = np.split(table[:, None, :], 2, axis=-1)  # [tokens, 1, head_dim / 2]
    first, second = np.split(x, 2, axis=-1) if half_split else (x[..., ::2], x[..., 1::2])
    turned = (first * cos - second * sin, second * cos + first * sin)
    if half_split:
        return np.concatenate(turned, axis=-1)
    return np.stack(turned, axis=-1).reshape(x.shape)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int) -> np.ndarray:
    """Causal attention with grouped heads: q [tokens, heads, head_dim] -> [tokens, width].

    k and v [tokens, kv_heads, head_dim]: heads / kv_heads queries share a key, and the width is
    heads * head_dim. A query sees its own and earlier keys, of which a `window` above 0 leaves the
    last so many keys. Source: Vaswani et al., "Attention Is All You Need", 2017; Ainslie et al.,
    "GQA", 2023.
    """
    tokens, heads, head_dim = q.shape
    k, v = (np.repeat(part, heads // k.shape[1], axis=1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * q.dtype.type(head_dim**-0.5)
    seen = np.tri(tokens, dtype=bool)
    if window:
        seen &= ~np.tri(tokens, k=-window, dtype=bool)
    share = softmax(np.where(seen, scores, -np.inf))
    return np.einsum("hqk,khd->qhd", share, v).reshape(tokens, -1)


def softmax(x: np.ndarray) -> np.ndarray:
    """e^(x - max x) / their sum, over the last dimension of x [..., n]: [..., n]."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def gated(h: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """down(silu(gate(h)) * up(h)): h [tokens, hidden], gate and up [n, hidden], down [hidden, n] ->
    [tokens, hidden]. Source: Shazeer, "GLU Variants Improve Transformer", 2020.
    """
    g = h @ gate.T
    return (g / (1 + np.exp(-g)) * (h @ up.T)) @ down.T


def top(z: np.ndarray, e: Experts) -> np.ndarray:
    """Each token's experts, int [tokens, top], from the router's z [tokens, experts].

    Of equal logits the lower index wins.
    """
    return np.argsort(-z, axis=-1, kind="stable")[:, : e.top]


def shares(z: np.ndarray, ids: np.ndarray, e: Experts) -> np.ndarray:
    """The weights of the chosen experts `ids` [tokens, top]: [tokens, top].

    z [tokens, experts] is the router's. Source: Shazeer et al., "Outrageously Large Neural
    Networks", 2017; Mixtral's renormalising (Jiang et al. 2024) and Cohere's sigmoid are options.
    """
    scores = softmax(z) if e.softmax else 1 / (1 + np.exp(-z))
    weights = np.take_along_axis(scores, ids, axis=-1)
    if e.renormalise:
        weights /= weights.sum(axis=-1, keepdims=True)
    return weights * z.dtype.type(e.scale)
