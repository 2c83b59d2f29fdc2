"""Log probabilities of chosen tokens and their rivals, by the logits as the model gave them: no
penalty, ban or temperature has touched them. A machine tells them; `token_logprob` is the same in
NumPy, which machines are held against. How they are written for a client is the server's."""

import math

import numpy as np

from mkport.engine.request import TokenLogprob
from mkport.engine.sampling import NotFinite
from mkport.engine.truncation import greatest_k

FLOOR = -9999.0  # stands for minus infinity, which JSON cannot hold


def told(token: int, ids: np.ndarray, logprobs: np.ndarray, top: int) -> TokenLogprob:
    """What a machine told of a row: `ids` [rivals] and `logprobs` [1 + rivals], the token's own
    first; in nats, of the `top` likeliest."""
    own, *others = (max(float(x), FLOOR) for x in logprobs[: 1 + top])
    return TokenLogprob(token, own, tuple(zip(ids[:top].tolist(), others, strict=True)))


def token_logprob(logits: np.ndarray, token: int, top: int, position: int) -> TokenLogprob:
    """The log probability, in nats, of `token` and of the `top` likeliest, from `logits` float32
    [vocab].

    Raises NotFinite, naming the position, for a row that holds NaN or infinity.
    """
    greatest = logits.max()
    if not math.isfinite(greatest):
        raise NotFinite(position)
    # pairwise float32 sums would do for one row, but float64 keeps rows of any width alike
    total = float(np.exp(logits - greatest).sum(dtype=np.float64))
    base = float(greatest) + math.log(total)

    def of(index: int) -> float:
        return max(float(logits[index]) - base, FLOOR)

    rivals: list[tuple[int, float]] = []
    if top:
        likeliest = greatest_k(logits, min(top, logits.size))
        likeliest = likeliest[np.argsort(-logits[likeliest], kind="stable")]
        rivals = [(int(i), of(i)) for i in likeliest]
    return TokenLogprob(token, of(token), tuple(rivals))
