"""Attention of a chunk's queries over the keys that are cached and its own, taken from their
pages."""

from typing import Any


def gathered(cache: Any, pages: Any) -> Any:
    """The keys (or values) in `pages` [n] of a cache [pages, kv_heads, page, dim]: [n * page,
    kv_heads, dim]."""
    blocks = cache.index_select(0, pages).transpose(1, 2)  # [n, page, kv_heads, dim]
    return blocks.reshape(-1, blocks.shape[2], blocks.shape[3])


def attention(q: Any, k: Any, v: Any, count: Any, keys: Any, window: int, scale: float) -> Any:
    """Each query sees the keys up to its own position, the last `window` keys if not 0.

    q [tokens, heads, dim], k and v [keys, kv_heads, dim]. `count` and `keys`, int32 [2], are 0 and
    how many of the queries and keys there are: the last of both stand at the same position.
    Returns [tokens, heads * dim]; rows beyond `count` hold anything. On a GPU by the flash kernel,
    which skips what a window hides; elsewhere with a mask.
    """
    import torch

    if q.is_cuda and q.dtype == torch.bfloat16 and q.shape[-1] <= 256:
        out = torch.ops.aten._flash_attention_forward(
            q, k, v, count, keys, len(q), len(k), 0.0, True, False,
            scale=scale, window_size_left=window - 1 if window else -1, window_size_right=0,
        )[0]  # fmt: skip
        return out.reshape(len(q), -1)
    tokens, end = int(count[1]), int(keys[1])
    distance = torch.arange(end - tokens, end, device=q.device)[:, None] - torch.arange(
        end, device=q.device
    )
    seen = distance >= 0
    if window:
        seen &= distance < window
    heads = (x.transpose(0, 1)[None] for x in (q[:tokens], k[:end], v[:end]))
    found = torch.nn.functional.scaled_dot_product_attention(
        *heads, attn_mask=seen, scale=scale, enable_gqa=True
    )
    out = q.new_full((len(q), q.shape[1] * q.shape[2]), float("nan"))
    out[:tokens] = found[0].transpose(0, 1).reshape(tokens, -1)
    return out
