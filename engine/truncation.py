"""Which tokens min_p, top_k and top_p leave to be drawn from, without sorting a whole vocabulary.
The draw itself is in `sampling`."""

import math

import numpy as np

CHUNK = 64  # logits whose greatest stands for them when the k greatest of all are sought
BUCKETS = 4096  # into which top_p sorts logits by size
TINY = 1e-30


def survivors(scores: np.ndarray, min_p: float, top_k: int, top_p: float) -> np.ndarray:
    """The ids, ascending int64 [left], that min_p, then top_k, then top_p leave of float32 `scores`
    [vocab] whose greatest is finite.

    min_p keeps what is at least min_p times as likely as the likeliest; top_k exactly k (0: all);
    top_p the fewest whose probabilities, renormalised after top_k, reach top_p. Lower ids win ties.
    Source: min_p, Nguyen et al. 2024; top_k, Fan, Lewis and Dauphin 2018; top_p, Holtzman et al.,
    "The Curious Case of Neural Text Degeneration", 2019.
    """
    ids = np.arange(scores.size)
    if min_p > 0:
        ids = np.flatnonzero(scores >= scores.max() + np.float32(math.log(min_p)))
    if 0 < top_k < ids.size:
        ids = ids[greatest_k(scores[ids], top_k)]
    if top_p < 1:
        ids = ids[_nucleus(scores[ids], top_p)]
    return ids


def greatest_k(values: np.ndarray, k: int) -> np.ndarray:
    """Indices, ascending int64 [k], of the k greatest of `values` float32 [n], k <= n; lower
    indices win ties."""
    whole = values.size // CHUNK
    if k <= whole // 4:
        # k chunks hold a value of at least the k-th greatest chunk's greatest: few others do
        tops = values[: whole * CHUNK].reshape(whole, CHUNK).max(axis=1)
        limit = np.partition(tops, whole - k)[whole - k]
    else:
        limit = np.partition(values, values.size - k)[values.size - k]
    among = np.flatnonzero(values >= limit)
    order = np.argsort(-values[among], kind="stable")[:k]
    return np.sort(among[order])


def _nucleus(values: np.ndarray, top_p: float) -> np.ndarray:
    """Indices, ascending, of the fewest values whose share of the softmax reaches top_p."""
    weights = np.exp(values - values.max())
    total = weights.sum(dtype=np.float64)
    needed = top_p * total
    # weights below (total - needed) / n are together less than total - needed: the rest suffices
    among = np.flatnonzero(weights >= (total - needed) / weights.size)
    values, weights = values[among], weights[among]
    # sorted into buckets by value, the greatest first, only the bucket where it is reached matters
    depth = values.max() - values
    bucket = (depth * ((BUCKETS - 1) / max(depth.max(), TINY))).astype(np.int64)
    reached = np.cumsum(np.bincount(bucket, weights, BUCKETS))
    last = min(int(np.searchsorted(reached, needed)), BUCKETS - 1)
    edge = np.flatnonzero(bucket == last)
    edge = edge[np.argsort(-weights[edge], kind="stable")]
    inside = (reached[last - 1] if last else 0.0) + np.cumsum(weights[edge], dtype=np.float64)
    edge = edge[: int(np.searchsorted(inside, needed)) + 1]
    return among[np.sort(np.concatenate((np.flatnonzero(bucket < last), edge)))]
