"""The rope body: up to 8 heads of a token; each is normed and rotated in the arena, then stored."""

from mkport.machines.cpu.norm import norm_row
from mkport.machines.cpu.vector import (
    body,
    fma_f32,
    get_f32,
    get_i32,
    load_f32,
    set_f32,
    store_f32,
    store_kv,
)

ROPE_HEADS = 8  # of a tile


@body
def rope_rotate(a, angles, arena):
    """Rotates the head in the arena's first part to its second; `angles` is its table row."""
    half = a.head_dim // 2
    for i in range(half):
        p_at, q_at = (i, i + half) if a.half_split else (2 * i, 2 * i + 1)
        p, q = get_f32(arena, p_at), get_f32(arena, q_at)
        c, s = get_f32(a.rope, angles + i), get_f32(a.rope, angles + half + i)
        set_f32(arena, a.head_dim + p_at, fma_f32(p, c, -(q * s)))
        set_f32(arena, a.head_dim + q_at, fma_f32(q, c, p * s))


@body
def rope(a, tile, arena):
    """y[token] = rope(x[token]), of normed heads if there is a norm, or the same into the token's
    slot of the cache."""
    parts = (a.heads + ROPE_HEADS - 1) // ROPE_HEADS
    token, first = tile // parts, tile % parts * ROPE_HEADS
    if token >= get_i32(a.count, 0):
        return
    sequence, position = get_i32(a.rows, 2 * token), get_i32(a.rows, 2 * token + 1)
    done = a.head_dim if a.rope != 0 else 0
    for head in range(first, min(first + ROPE_HEADS, a.heads)):
        at = (token * a.heads + head) * a.head_dim
        for i in range(0, a.head_dim, 16):
            store_f32(arena, i, load_f32(a.x, at + i))
        if a.w != 0:
            norm_row(arena, a.w, arena, 0, a.head_dim, a.eps, 0)
        if a.rope != 0:
            rope_rotate(a, position * a.head_dim, arena)
        if a.y != 0:
            for i in range(0, a.head_dim, 16):
                store_f32(a.y, at + i, load_f32(arena, done + i))
        else:
            page = get_i32(a.page_table, sequence * a.pages_per_sequence + position // a.page)
            slot = (page * a.heads + head) * a.page + position % a.page
            for i in range(0, a.head_dim, 16):
                store_kv(a.pages, slot * a.head_dim + i, load_f32(arena, done + i))
