"""The gemm body: 16 output columns for every token of a block."""

from mkport.machines.cpu.dot import MANY, NEAR, dot_group, dot_tile, put_rows
from mkport.machines.cpu.many import dot_many
from mkport.machines.cpu.norm import norm_rows
from mkport.machines.cpu.vector import add, body, get_i32, join_sums, load_f32, store_f32


@body
def gemm(a, tile, arena):
    """y[block, 16 columns] = x w^T (+ residual)."""
    columns = (a.n + 15) // 16
    n0 = tile % columns * 16
    rows = min(16, a.n - n0)
    tokens = get_i32(a.count, 0)
    first = tile // columns * a.block
    if a.block > 0:
        tokens = min(tokens, first + a.block)
    if tokens - first >= MANY and rows == 16 and a.norm_w == 0 and a.k <= NEAR:
        gemm_many(a, n0, first, tokens - first, arena)
        return
    wide = arena + 12288 + (12 * a.k if a.norm_w != 0 else 0)  # behind all else
    t0 = first
    while t0 < tokens:
        done = t0 - first
        group = dot_group(done, tokens - first)  # tokens that share each weight that is loaded
        x, x_at = a.x, t0 * a.k
        if a.norm_w != 0:
            x, x_at = arena + 12288, 0  # behind dot_tile's share
            norm_rows(a.x, a.norm_w, t0, group, a.k, a.norm_eps, x)
        if a.norm_y != 0 and n0 == 0:
            norm_rows(a.x, a.norm_w, t0, group, a.k, a.norm_eps, a.norm_y + 4 * t0 * a.k)
        dot_tile(a.w, n0 * a.k, rows, wide, x, x_at, tokens - first, a.k, done, arena)
        for t in range(group):
            y = join_sums(arena, t * 256)
            at = (t0 + t) * a.n + n0
            if a.residual != 0:
                y = add(y, load_f32(a.residual, at))
            put_rows(a.y, at, y, rows, arena)
        t0 += group


@body
def gemm_many(a, n0, first, count, arena):
    """A whole tile of `count` tokens from `first` on, which share weights that are widened once."""
    sums = arena + 12288 + 64 * a.k  # behind dot_many's share
    w = n0 * a.k
    dot_many(a.w, w, w + 8 * a.k, 16 * a.k, a.k, a.x, first * a.k, count, sums, arena)
    for t in range(count):
        y, at = load_f32(sums, t * 16), (first + t) * a.n + n0
        if a.residual != 0:
            y = add(y, load_f32(a.residual, at))
        store_f32(a.y, at, y)
