"""What rope must compute, in PyTorch, and the cases it is checked on."""

from typing import Any

import numpy as np
import torch

from mkport.declare.case import Case, stored

PAGE, SEQUENCE_PAGES, SEQUENCES = 16, 3, 4  # keys in a page, pages of a sequence, sequences

SHAPES: dict[str, dict[str, Any]] = {
    "queries": {"tokens": 1, "rows": 1, "heads": 9, "head_dim": 64},
    "interleaved": {"tokens": 8, "rows": 5, "heads": 2, "head_dim": 48, "half_split": 0},
    "in place": {"tokens": 4, "rows": 3, "heads": 3, "head_dim": 16, "in_place": True},
    "keys": {"tokens": 8, "rows": 7, "heads": 3, "head_dim": 64, "cached": True},
    "interleaved keys": {
        "tokens": 3, "rows": 3, "heads": 2, "head_dim": 32, "half_split": 0, "cached": True,
    },
    "values": {
        "tokens": 8, "rows": 6, "heads": 2, "head_dim": 80, "rotated": False, "cached": True,
    },
    "normed queries": {"tokens": 4, "rows": 3, "heads": 19, "head_dim": 128, "eps": 1e-5},
    "normed in place": {
        "tokens": 2, "rows": 2, "heads": 8, "head_dim": 144, "eps": 1e-6, "in_place": True,
    },
    "normed keys": {
        "tokens": 3, "rows": 2, "heads": 9, "head_dim": 48, "eps": 0.5, "cached": True,
    },
    "normed and interleaved": {
        "tokens": 2, "rows": 2, "heads": 3, "head_dim": 32, "eps": 1e-5, "half_split": 0,
    },
    "copy": {"tokens": 2, "rows": 2, "heads": 1, "head_dim": 16, "rotated": False},
}  # fmt: skip


def rotate(t, x):
    """x [rows, heads, head_dim] rotated by its rows' positions, the same shape; as it is without a
    table."""
    if getattr(t, "rope", None) is None:
        return x
    angles = t.rope[t.rows[: len(x), 1], None]  # [rows, 1, head_dim]
    c, s = angles.chunk(2, dim=-1)
    half = t.head_dim // 2
    i0 = torch.arange(half) * (1 if t.half_split else 2)
    i1 = i0 + (half if t.half_split else 1)
    p, q = x[..., i0], x[..., i1]
    y = torch.empty_like(x)
    y[..., i0] = p * c - q * s
    y[..., i1] = q * c + p * s
    return y


def deliver(t, y):
    """y [rows, heads, head_dim] as the op's output: a matrix [rows, heads * head_dim], or the whole
    cache [pages, heads, page, head_dim]."""
    if getattr(t, "pages", None) is None:
        return {"y": y.flatten(1)}
    pages = t.pages.clone()
    sequence, position = t.rows[: len(y)].T
    pages[t.page_table[sequence, position // t.page], :, position % t.page] = y
    return {"pages": pages}


def oracle(t):
    """The rows, normed and rotated, or the whole cache, as `deliver` gives them; in the tensors'
    dtype."""
    x = t.x[: int(t.count[0])].unflatten(1, (t.heads, t.head_dim))
    if getattr(t, "w", None) is not None:
        x = x / (x.square().mean(dim=-1, keepdim=True) + t.eps).sqrt() * t.w
    return deliver(t, rotate(t, x))


def surroundings(rng, cache, tokens, rows, heads, head_dim, half_split, rotated, cached):
    """A case without its product's operands: random places, table, and y or a cache.

    Idle rows have no valid place. The cache has old contents, which must survive.
    """
    reach = PAGE * SEQUENCE_PAGES
    places = rng.permutation(SEQUENCES * reach)[:rows]
    where = np.full((tokens, 2), np.iinfo(np.int32).min, np.int32)
    where[:rows] = np.stack([places // reach, places % reach], axis=1)
    arrays = {"count": np.array([rows], np.int32), "rows": where}
    if rotated:
        angle = rng.uniform(0, 2 * np.pi, (reach, head_dim // 2))
        table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        arrays["rope"] = table.astype(np.float32)
    values = {
        "heads": heads,
        "head_dim": head_dim,
        "page": PAGE,
        "pages_per_sequence": SEQUENCE_PAGES,
        "half_split": half_split,
    }
    if not cached:
        arrays["y"] = np.full((tokens, heads * head_dim), np.nan, np.float32)
        return Case(arrays, values, ("y",))
    pool = SEQUENCES * SEQUENCE_PAGES + 1
    order = rng.permutation(pool)[: SEQUENCES * SEQUENCE_PAGES]
    arrays["page_table"] = order.reshape(SEQUENCES, SEQUENCE_PAGES).astype(np.int32)
    old = rng.standard_normal((pool, heads, PAGE, head_dim), np.float32)
    arrays["pages"] = stored(old, cache)
    return Case(arrays, values, ("pages",), {"pages": (tokens, 2, heads * head_dim)})


def make(
    rng,
    weights,
    cache,
    tokens,
    rows,
    heads,
    head_dim,
    half_split=1,
    rotated=True,
    cached=False,
    in_place=False,
    eps=0.0,
):
    """Random inputs of the given shape; cache storage `cache`. With `eps` heads are normed."""
    case = surroundings(rng, cache, tokens, rows, heads, head_dim, half_split, rotated, cached)
    case.arrays["x"] = rng.standard_normal((tokens, heads * head_dim), np.float32)
    case.arrays["x"][rows:] = np.nan
    case.values["eps"] = eps
    if eps:
        case.arrays["w"] = rng.standard_normal(head_dim, np.float32)
    if in_place:
        case.arrays["y"] = case.arrays["x"]
    return case


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    split = (-1, a.heads, a.head_dim)
    kernel(
        a.x[:rows].reshape(split),
        a.rows[:rows],
        getattr(a, "rope", None),
        bool(a.half_split),
        a.y[:rows].reshape(split) if hasattr(a, "y") else None,
        getattr(a, "pages", None),
        getattr(a, "page_table", None),
        getattr(a, "w", None),
        a.eps,
    )


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    rope, table, y, pages, w = (
        getattr(a, name, None) for name in ("rope", "page_table", "y", "pages", "w")
    )
    kernel = "rope_f32" if pages is not None and pages.dtype == np.float32 else "rope_bf16"
    sizes = (a.heads, a.head_dim, a.page, a.pages_per_sequence, a.half_split)
    if rows := int(a.count[0]):
        launch(kernel, rows, 256, 0, a.x, a.rows, rope, table, y, pages, w, *sizes, a.eps)
