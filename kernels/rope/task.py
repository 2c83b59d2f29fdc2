"""The rope body: one token, head by head; each is rotated in the arena, then stored."""

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


@body
def rope_rotate(a, at, angles, arena):
    """Puts the head at element `at` of x, rotated, into the arena; `angles` is its table row."""
    half = a.head_dim // 2
    for i in range(half):
        p_at, q_at = (i, i + half) if a.half_split else (2 * i, 2 * i + 1)
        p, q = get_f32(a.x, at + p_at), get_f32(a.x, at + q_at)
        c, s = get_f32(a.rope, angles + i), get_f32(a.rope, angles + half + i)
        set_f32(arena, p_at, fma_f32(p, c, -(q * s)))
        set_f32(arena, q_at, fma_f32(q, c, p * s))


@body
def rope(a, tile, arena):
    """y[tile] = rope(x[tile]), or the same into the token's slot of the cache."""
    if tile >= get_i32(a.count, 0):
        return
    sequence, position = get_i32(a.rows, 2 * tile), get_i32(a.rows, 2 * tile + 1)
    for head in range(a.heads):
        at = (tile * a.heads + head) * a.head_dim
        if a.rope != 0:
            rope_rotate(a, at, position * a.head_dim, arena)
        else:
            for i in range(0, a.head_dim, 16):
                store_f32(arena, i, load_f32(a.x, at + i))
        if a.y != 0:
            for i in range(0, a.head_dim, 16):
                store_f32(a.y, at + i, load_f32(arena, i))
        else:
            page = get_i32(a.page_table, sequence * a.pages_per_sequence + position // a.page)
            slot = (page * a.heads + head) * a.page + position % a.page
            for i in range(0, a.head_dim, 16):
                store_kv(a.pages, slot * a.head_dim + i, load_f32(arena, i))
