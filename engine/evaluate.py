"""Perplexity of a text; the bundled one is chapter I of Lewis Carroll's "Alice's Adventures in
Wonderland" (1865, public domain). Reading the text and printing the number are the caller's job.

Definition: the token ids, without any special token added, are cut into consecutive windows. Each
window starts afresh at position 0 with nothing before it, so its first token is not predicted and
every other one is predicted from the tokens before it in its window. Perplexity is e to the mean of
the negative log likelihoods over all predicted tokens of all windows; a last window of one token
predicts nothing. Logits are float32 from the model's own steps; the log-softmax is in float64.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mkport.engine.decoder import Decoder
from mkport.errors import UserError

CORPUS = Path(__file__).with_name("corpus.txt")
WINDOW = 512  # tokens


@dataclass(frozen=True)
class Perplexity:
    """The result, and what it was measured over."""

    perplexity: float
    nll: float  # mean negative log likelihood, in nats
    tokens: int
    predicted: int  # tokens that were predicted: one a window less
    windows: int
    window: int  # tokens of a full window
    seconds: float


def perplexity(
    decoder: Decoder,
    ids: Sequence[int],
    window: int = WINDOW,
    progress: Callable[[int], object] = lambda tokens: None,
) -> Perplexity:
    """Perplexity of `ids` [tokens] under a decoder made with `all_logits=True`; `window` is in
    tokens. How it is defined stands at the head of this file.

    `progress` receives the number of tokens of each step. Raises UserError for a window that is
    longer than the context or predicts nothing, a text of fewer than two tokens, and logits that
    are not finite.
    """
    if not 2 <= window <= decoder.context:
        raise UserError(
            f"A window of {window} tokens does not fit: give 2 to {decoder.context}, the context."
        )
    if len(ids) < 2:
        raise UserError(f"The text has {len(ids)} tokens; perplexity needs at least two.")
    started = time.perf_counter()
    windows = [ids[first : first + window] for first in range(0, len(ids), window)]
    windows = [part for part in windows if len(part) > 1]
    total = sum(_window_nll(decoder, part, progress) for part in windows)
    predicted = sum(len(part) - 1 for part in windows)
    nll = total / predicted
    return Perplexity(
        perplexity=math.exp(nll),
        nll=nll,
        tokens=len(ids),
        predicted=predicted,
        windows=len(windows),
        window=window,
        seconds=time.perf_counter() - started,
    )


def _window_nll(decoder: Decoder, ids: Sequence[int], progress: Callable[[int], object]) -> float:
    """The sum of the negative log likelihoods of ids[1:]."""
    total = 0.0
    for first in range(0, len(ids), decoder.chunk):
        part = ids[first : first + decoder.chunk]
        rows = [(0, first + i, token) for i, token in enumerate(part)]
        _, logits = decoder.step(rows, range(len(part)))
        targets = ids[first + 1 : first + 1 + len(part)]  # the last token of all predicts nothing
        total += _nll(logits[: len(targets)], np.asarray(targets, np.int64))
        progress(len(part))
    return total


def _nll(logits: np.ndarray, targets: np.ndarray) -> float:
    """Summed negative log likelihood; logits float32 [tokens, vocabulary], targets [tokens]."""
    if not np.isfinite(logits).all():
        raise UserError(
            "The logits are not finite: the weights hold NaN or infinity, or the cache type is too "
            "narrow for this model."
        )
    exact = logits.astype(np.float64)
    top = exact.max(axis=1, initial=-np.inf)
    log_sum = top + np.log(np.exp(exact - top[:, None]).sum(axis=1))
    return float((log_sum - exact[np.arange(len(targets)), targets]).sum())
