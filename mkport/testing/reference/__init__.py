"""A plain reference of every family's logits in NumPy: no cache pages, no tiles, no schedule.

It reads top to bottom as the formulas do, one sequence at a time, and is what a whole step is held
to. Here a model is put together; the formulas, with their sources, are in `formulas.py`.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from mkport.models.base import DecoderConfig
from mkport.testing.law import EPS, Measured, measure
from mkport.testing.reference.families import BLOCKS, Choices, Model

__all__ = ["judge_logits", "logits"]


def logits(
    config: DecoderConfig,
    weights: Mapping[str, np.ndarray],
    ids: Sequence[int],
    kind: type[np.floating] = np.float64,
    cache: str = "f32",
    chosen: Choices | None = None,
) -> np.ndarray:
    """The logits after each of the `ids` [tokens] of one sequence: `kind` [tokens, vocabulary].

    `weights` holds the tensors as a step reads them (bfloat16 as uint16, experts stacked, factors
    such as a logit scale multiplied in). All arithmetic is in `kind`; keys and values are rounded
    to the storage type `cache` before they are used. `chosen` gives the experts of the layers that
    it holds; the other layers choose, and are added to it.
    """
    model = Model(config, weights, len(ids), kind, cache, {} if chosen is None else chosen)
    block = BLOCKS[config.model_type]
    embedding = model.weight("model.embed_tokens.weight")
    x = embedding[list(ids)]  # [tokens, hidden]
    for layer in range(config.layers):
        x = block(model, layer, x)
    h = model.norm(x, "model.norm.weight")
    return h @ (embedding if config.tied else model.weight("lm_head.weight")).T


def judge_logits(
    config: DecoderConfig,
    weights: Mapping[str, np.ndarray],
    ids: Sequence[int],
    cache: str,
    got: np.ndarray,
) -> Measured:
    """Holds `got`, a step's logits float32 [tokens, vocabulary] after `ids` [tokens], to the law.

    The truth is the reference in float64 with an exact cache; what may go wrong is twice what goes
    wrong in plain float32 NumPy with the same cache type. Experts are the ones that plain NumPy
    chooses, in both: a bfloat16 cache sends some tokens to others than an exact one would, and
    that difference would hide any mistake.
    """
    chosen: Choices = {}
    plain = logits(config, weights, ids, np.float32, cache, chosen)
    truth = logits(config, weights, ids, chosen=chosen)
    return measure(got, truth, plain, EPS["float32"])
