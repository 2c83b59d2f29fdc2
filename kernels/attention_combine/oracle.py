"""What attention_combine must compute, in PyTorch, and the cases it is checked on."""

import numpy as np
import torch

from mkport.declare.case import Case
from mkport.kernels.attention.op import SPLIT, splits_kept

SHAPES = {
    "one token": {"positions": [4], "heads": 9, "head_dim": 64},
    "ragged batch, idle rows": {
        "positions": [510, 0, 511, 1200, 512],
        "tokens": 8,
        "heads": 9,
        "head_dim": 64,
    },
    "more splits than a warp's lanes": {
        "positions": [17000, 511],
        "heads": 2,
        "head_dim": 48,
        "warps": 8,
    },
    "long context": {"positions": [8191, 5000], "heads": 32, "head_dim": 128},
    "longer context": {"positions": [70000, 3], "heads": 3, "head_dim": 80, "warps": 8},
    "window in a split": {
        "positions": [298, 299, 300, 1023, 1024, 1123, 2400],
        "window": 300,
        "heads": 4,
        "head_dim": 16,
    },
    "small window": {
        "positions": [3, 511, 512, 513, 1800],
        "window": 4,
        "heads": 8,
        "head_dim": 80,
    },
    "window over many splits": {
        "positions": [4095, 4607, 8190, 8191, 8192, 20000],
        "window": 4096,
        "heads": 9,
        "head_dim": 64,
    },
    "window of one key": {
        "positions": [0, 511, 512, 5000],
        "window": 1,
        "heads": 2,
        "head_dim": 16,
    },
}


def oracle(t):
    """y [live, heads * head_dim]: the seen splits joined by softmax, in the tensors' dtype."""
    joined = []
    for partial, (_, position) in zip(t.partial, t.rows[: int(t.count[0])].tolist(), strict=False):
        oldest = max(position - t.window + 1, 0) if t.window else 0
        kept = torch.arange(oldest // SPLIT, position // SPLIT + 1) % t.splits
        seen = partial[kept]  # [seen splits, heads, head_dim + 16]
        sums, m, weight_sum = (
            seen[..., : t.head_dim],
            seen[..., t.head_dim],
            seen[..., t.head_dim + 1],
        )
        factor = torch.exp(m - m.max(0).values)
        y = (factor[..., None] * sums).sum(0) / (factor * weight_sum).sum(0)[..., None]
        joined.append(y.flatten())  # [heads * head_dim]
    return {"y": torch.stack(joined)}


def make(rng, weights, cache, positions, heads, head_dim, tokens=0, window=0, warps=1):
    """Random partials of tokens at `positions`; splits that a token does not see are NaN."""
    tokens = tokens or len(positions)
    splits = splits_kept(max(positions) + 1 + SPLIT, window)
    partial = np.full((tokens, splits, heads, head_dim + 16), np.nan, np.float32)
    rows = np.full((tokens, 2), -1, np.int32)
    for token, position in enumerate(positions):
        rows[token] = token, position
        oldest = max(position - window + 1, 0) if window else 0
        for split in range(oldest // SPLIT, position // SPLIT + 1):
            out = partial[token, split % splits]
            out[:, :head_dim] = rng.standard_normal((heads, head_dim), np.float32)
            out[:, head_dim] = 3 * rng.standard_normal(heads, np.float32)
            out[:, head_dim + 1] = 1 + 9 * rng.random(heads, np.float32)
    return Case(
        {
            "count": np.array([len(positions)], np.int32),
            "rows": rows,
            "partial": partial,
            "y": np.full((tokens, heads * head_dim), np.nan, np.float32),
        },
        {"heads": heads, "head_dim": head_dim, "splits": splits, "window": window, "warps": warps},
        ("y",),
        {"partial": (tokens, splits, heads)},
    )


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    live = int(a.count[0])
    y = a.y[:live].reshape(live, a.heads, a.head_dim)
    kernel(a.partial[:live], a.rows[:live, 1], a.window, y)


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    live = int(a.count[0])
    parts = live * a.heads * -(-a.head_dim // 32)
    shared = 4 * (32 * min(a.splits, 1024) + 2 * a.splits)
    tensors, sizes = (a.partial, a.rows, a.y), (a.heads, a.head_dim, a.splits, a.window)
    if live and a.splits <= 32:
        launch("attention_combine_few", -(-parts // 4), 128, 0, *tensors, live, *sizes)
    elif live:
        launch("attention_combine", parts, 128, shared, *tensors, *sizes)
