"""Attention of a chunk's queries over the keys that are cached and its own, taken from their
pages."""

from typing import Any


def gathered(cache: Any, pages: Any, first: int, end: int) -> Any:
    """The keys (or values) `first` to `end` of the positions in `pages` [n] of a cache [pages,
    kv_heads, page, dim]: [end - first, kv_heads, dim]."""
    blocks = cache.index_select(0, pages).transpose(1, 2)  # [n, page, kv_heads, dim]
    return blocks.reshape(-1, blocks.shape[2], blocks.shape[3])[first:end]


def attention(q: Any, k: Any, v: Any, window: int, scale: float) -> Any:
    """Each query sees the keys up to its own position; a `window` above 0 leaves the last so many
    keys of them.

    q [tokens, heads, dim], k and v [keys, kv_heads, dim]; the last query stands at the last key.
    Returns [tokens, heads * dim]. On a GPU by the flash kernel, which skips what a window hides;
    elsewhere with a mask.
    """
    import torch

    if q.is_cuda and q.dtype == torch.bfloat16 and q.shape[-1] <= 256:
        left = window - 1 if window and window < len(k) else -1
        out = torch.ops.aten._flash_attention_forward(
            q[None], k[None], v[None], None, None, len(q), len(k), 0.0, True, False,
            scale=scale, window_size_left=left, window_size_right=0,
        )[0]  # fmt: skip
        return out.reshape(len(q), -1)
    distance = torch.arange(len(k) - len(q), len(k), device=q.device)[:, None] - torch.arange(
        len(k), device=q.device
    )
    seen = distance >= 0
    if window:
        seen &= distance < window
    out = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (q, k, v)), attn_mask=seen, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1).reshape(len(q), -1)
