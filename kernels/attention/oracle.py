"""What a split of attention must compute, in PyTorch, and the cases it is checked on."""

import numpy as np
import torch

from mkport.declare import spread_step
from mkport.declare.case import Case, stored
from mkport.kernels.attention.op import SPLIT, splits_kept

SMOL = {"heads": 9, "kv_heads": 3, "head_dim": 64, "page": 16}
SHAPES = {
    "one short token": {"places": [(0, 4)], **SMOL},
    "ragged batch, idle rows": {
        "places": [(2, 510), (0, 511), (1, 512), (3, 0), (4, 1199)],
        "tokens": 8,
        **SMOL,
    },
    "prefill chunk": {
        "places": [(1, 20 + i) for i in range(7)] + [(0, 3)],
        "heads": 8,
        "kv_heads": 8,
        "head_dim": 16,
        "page": 16,
    },
    "chunk across a split": {
        "places": [(0, 508 + i) for i in range(8)],
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 64,
        "page": 64,
    },
    "chunk across a split, side by side": {
        "places": [(1, 7), *((0, 508 + i) for i in range(7))],
        "tokens": 8,
        **SMOL,
    },
    "8 queries a key": {
        "places": [(0, 300), (1, 17)],
        "heads": 32,
        "kv_heads": 4,
        "head_dim": 128,
        "page": 64,
    },
    "heads of 112": {
        "places": [(0, 65), (1, 15)],
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 112,
        "page": 32,
    },
    "window below a page": {"places": [(i, 4 + i) for i in range(3)], "window": 6, **SMOL},
    "window in a split": {
        "places": [(0, 98), (1, 99), (2, 100), (3, 600), (4, 1023)],
        "window": 100,
        **SMOL,
        "page": 64,
    },
    "window over splits": {
        "places": [(0, 598), (1, 599), (2, 600), (3, 1611), (4, 1199)],
        "window": 600,
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 16,
        "page": 16,
    },
    "window of two splits and a key, one sequence": {
        "places": [(0, 1532 + i) for i in range(8)],
        "window": 1025,
        **SMOL,
        "page": 48,
    },
    "window of one key": {"places": [(0, 511), (0, 512), (1, 0), (1, 1600)], "window": 1, **SMOL},
    "window beyond the context": {"places": [(0, 700), (1, 3)], "window": 5000, **SMOL},
    "one split, joined": {
        "places": [(0, 0), (2, 15), (1, 300), (3, 495)],
        "tokens": 6,
        "joined": True,
        **SMOL,
    },
    "one split, side by side, joined": {
        "places": [(0, 30 + i) for i in range(7)],
        "tokens": 8,
        "joined": True,
        **SMOL,
    },
    "one split of 8 queries a key, joined": {
        "places": [(0, 90 + i) for i in range(3)] + [(1, 440)],
        "heads": 32,
        "kv_heads": 4,
        "head_dim": 128,
        "page": 64,
        "joined": True,
    },
    "one split of heads of 112, a window, joined": {
        "places": [(0, 65), (1, 15)],
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 112,
        "page": 32,
        "window": 40,
        "joined": True,
    },
}


def oracle(t):
    """partial [tokens, splits, heads, head_dim + 16] with the seen splits' (sums, m, l) filled in;
    or y [tokens, heads * head_dim], the sums of the one split over its l.

    It has the dtype of the given tensors.
    """
    y = getattr(t, "y", None)
    partial = t.partial.clone() if y is None else t.q.new_zeros(
        len(t.q), 1, t.heads, t.head_dim + 16
    )  # fmt: skip
    queries = t.q.reshape(len(t.q), t.heads, t.head_dim)
    group = t.heads // t.kv_heads
    for token in range(int(t.count[0])):
        sequence, position = t.rows[token].tolist()
        first = max(position - t.window + 1, 0) if t.window else 0
        for split in range(first // SPLIT, position // SPLIT + 1):
            j = torch.arange(max(first, split * SPLIT), min(position + 1, (split + 1) * SPLIT))
            pages = t.page_table[sequence, j // t.page]
            keys, values = (  # [keys, heads, head_dim]
                cache[pages, :, j % t.page].repeat_interleave(group, 1)
                for cache in (t.k_pages, t.v_pages)
            )
            scores = t.scale * torch.einsum("hd,jhd->hj", queries[token], keys)
            m = scores.max(1, keepdim=True).values
            weights = torch.exp(scores - m)
            out = partial[token, split % t.splits]  # [heads, head_dim + 16]
            out[:, : t.head_dim] = torch.einsum("hj,jhd->hd", weights, values)
            out[:, t.head_dim] = m[:, 0]
            out[:, t.head_dim + 1] = weights.sum(1)
    if y is None:
        return {"partial": partial}
    return {"y": divided(partial[: int(t.count[0])], y.clone(), t.head_dim)}


def divided(partial, y, dim):
    """y [tokens, heads * head_dim] with the rows filled in of which partial
    [rows, 1, heads, dim + 16] has the one split: sums, of which -0 is 0, over l."""
    joined = (partial[:, 0, :, :dim] + 0.0) / partial[:, 0, :, dim + 1 : dim + 2]
    y[: len(partial)] = joined.reshape(len(partial), -1)
    return y


def make(
    rng, weights, cache, places, heads, kv_heads, head_dim, page, tokens=0, window=0, joined=False
):
    """Tokens at `places` (sequence, position), in `tokens` rows; cache storage `cache`. `joined`:
    they see one split, and `y` takes their output.

    Pages lie in random order. Every slot of the cache that no token sees is NaN, and logical pages
    that no token sees lead to a page of NaN.
    """
    tokens = tokens or len(places)
    sequences = 1 + max(sequence for sequence, _ in places)
    longest = 1 + max(position for _, position in places)
    per_sequence = -(-longest // page) + 1
    seen = np.zeros((sequences, per_sequence * page), bool)
    for sequence, position in places:
        seen[sequence, max(position - window + 1, 0) if window else 0 : position + 1] = True
    order = 1 + rng.permutation(sequences * per_sequence).reshape(sequences, per_sequence)
    used = seen.reshape(sequences, per_sequence, page).any(2)
    table = np.where(used, order, 0).astype(np.int32)
    pools = []
    for _ in range(2):
        pool = np.full((1 + order.size, page, kv_heads, head_dim), np.nan, np.float32)
        sequence, j = np.nonzero(seen)
        visible = rng.standard_normal((len(j), kv_heads, head_dim), np.float32)
        pool[table[sequence, j // page], j % page] = visible
        pools.append(stored(pool.swapaxes(1, 2), cache))
    rows = np.full((tokens, 2), -1, np.int32)
    rows[: len(places)] = places
    splits = 1 if joined else splits_kept(longest + SPLIT, window)
    shape = (tokens, heads * head_dim) if joined else (tokens, splits, heads, head_dim + 16)
    output = "y" if joined else "partial"
    return Case(
        {
            "count": np.array([len(places)], np.int32),
            "rows": rows,
            "page_table": table,
            "q": rng.standard_normal((tokens, heads * head_dim), np.float32),
            "k_pages": pools[0],
            "v_pages": pools[1],
            # rows behind the last, and splits that a token does not see, keep what they hold
            output: np.full(shape, 7, np.float32),
        },
        {
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "page": page,
            "splits": splits,
            "split_step": spread_step(splits),
            "window": window,
            "pages_per_sequence": per_sequence,
            "scale": float(np.float32(head_dim**-0.5)),
        },
        (output,),
        dict.fromkeys(("k_pages", "v_pages"), (tokens, 2, kv_heads * head_dim))
        | ({} if joined else {"partial": (tokens, splits, heads)}),
    )


def call_standalone(kernel, a):
    """Runs a rung or the standalone kernel on a case's arrays."""
    live = int(a.count[0])
    q = a.q[:live].reshape(live, a.heads, a.head_dim)
    y, scale = getattr(a, "y", None), np.float32(a.scale)
    shape = (live, 1, a.heads, a.head_dim + 16)
    partial = a.partial[:live] if y is None else np.zeros(shape, np.float32)
    kernel(q, a.k_pages, a.v_pages, a.page_table, a.rows[:live], a.window, scale, partial)
    if y is not None:
        divided(partial, y, a.head_dim)


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    live, dim = int(a.count[0]), a.head_dim
    stored, y = "f32" if a.k_pages.dtype == np.float32 else "bf16", getattr(a, "y", None)
    kernel = f"attention_{stored}" + ("" if y is None else "_whole")
    sizes = (a.heads, a.kv_heads, dim, a.page, a.splits, a.window, a.pages_per_sequence)
    tensors = (a.q, a.rows, a.page_table, a.k_pages, a.v_pages, a.partial if y is None else y)
    if stored == "bf16" and dim in (64, 128):
        shared = 8 * 2 * 2 * 16 * dim * 2 + 2 * 8 * 8 * (dim + 4 + 2) * 4
    else:
        shared = 8 * (dim + 2 + 64) * 4
    blocks = min(live * a.splits * a.kv_heads, launch.multiprocessors)
    if live:
        launch(kernel, blocks, 256, shared, *tensors, live, *sizes, a.scale)
