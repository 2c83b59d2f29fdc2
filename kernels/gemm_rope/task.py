"""The gemm_rope body: 8 rotated pairs of one head for every token of a block.

A tile's 16 outputs are two runs of 8: in half-split pairs the first run's partners are the second,
in interleaved pairs the runs are neighbours and so are the partners.
"""

from mkport.machines.cpu.dot import MANY, NEAR, dot_group, dot_tile
from mkport.machines.cpu.many import dot_many
from mkport.machines.cpu.norm import norm_rows
from mkport.machines.cpu.vector import (
    body,
    fma_f32,
    get_f32,
    get_i32,
    join_sums,
    load_f32,
    set_f32,
    set_kv,
    store_f32,
)


@body
def gemm_rope_rotate(a, angles, out):
    """Rotates the 8 pairs in `out`; the first one's cosine is element `angles` of the table."""
    for i in range(8):
        p_at, q_at = (i, i + 8) if a.half_split else (2 * i, 2 * i + 1)
        p, q = get_f32(out, p_at), get_f32(out, q_at)
        c, s = get_f32(a.rope, angles + i), get_f32(a.rope, angles + a.head_dim // 2 + i)
        set_f32(out, p_at, fma_f32(p, c, -(q * s)))
        set_f32(out, q_at, fma_f32(q, c, p * s))


@body
def gemm_rope_store(a, t, position, head, first, second, out):
    """Stores the two runs of `out` at columns `first` and `second` of the token's head."""
    if a.y != 0:
        at = (t * a.heads + head) * a.head_dim
        for i in range(8):
            set_f32(a.y, at + first + i, get_f32(out, i))
            set_f32(a.y, at + second + i, get_f32(out, 8 + i))
    else:
        sequence = get_i32(a.rows, 2 * t)
        page = get_i32(a.page_table, sequence * a.pages_per_sequence + position // a.page)
        at = ((page * a.heads + head) * a.page + position % a.page) * a.head_dim
        for i in range(8):
            set_kv(a.pages, at + first + i, get_f32(out, i))
            set_kv(a.pages, at + second + i, get_f32(out, 8 + i))


@body
def gemm_rope_put(a, t, head, part, upper, lower, out):
    """Rotates a token's `out` and stores it."""
    position = get_i32(a.rows, 2 * t + 1)
    if a.rope != 0:
        gemm_rope_rotate(a, position * a.head_dim + part * 8, out)
    gemm_rope_store(a, t, position, head, upper, lower, out)


@body
def gemm_rope(a, tile, arena):
    """Tile's 16 columns of rope(x w^T), to y or to the tokens' slots of the cache."""
    per_head = a.head_dim // 16
    columns = a.heads * per_head
    head, part = tile % columns // per_head, tile % per_head
    upper = part * (8 if a.half_split else 16)
    lower = upper + (a.head_dim // 2 if a.half_split else 8)
    w1, w2 = (head * a.head_dim + upper) * a.k, (head * a.head_dim + lower) * a.k
    tokens = get_i32(a.count, 0)
    out = arena + 12800  # one vector behind dot_tile's shares
    first = tile // columns * a.block
    if a.block > 0:
        tokens = min(tokens, first + a.block)
    if tokens - first >= MANY and a.norm_w == 0 and a.k <= NEAR:
        sums = arena + 12864 + 64 * a.k  # behind `out` and what dot_many needs
        dot_many(a.w, w1, w2, 8 * a.k, a.k, a.x, first * a.k, tokens - first, sums, arena)
        for t in range(first, tokens):
            store_f32(out, 0, load_f32(sums, (t - first) * 16))
            gemm_rope_put(a, t, head, part, upper, lower, out)
        return
    wide = arena + 12864 + (12 * a.k if a.norm_w != 0 else 0)  # behind all else
    t0 = first
    while t0 < tokens:
        done, count = t0 - first, tokens - first
        group = dot_group(done, count)  # tokens that share each weight that is loaded
        x, x_at = a.x, t0 * a.k
        if a.norm_w != 0:
            x, x_at = arena + 12864, 0  # behind what this body and dot_tile need
            norm_rows(a.x, a.norm_w, t0, group, a.k, a.norm_eps, x)
        dot_tile(a.w, w1, 8, wide, x, x_at, count, a.k, done, arena)
        # 8 rows of 16 lanes on
        dot_tile(a.w, w2, 8, wide + 32 * a.k, x, x_at, count, a.k, done, arena + 512)
        for t in range(t0, t0 + group):
            store_f32(out, 0, join_sums(arena, (t - t0) * 256))
            gemm_rope_put(a, t, head, part, upper, lower, out)
        t0 += group
