"""The gemm_silu body: 16 output columns for every token of a block."""

from mkport.machines.cpu.dot import dot_group, dot_tile, put_rows
from mkport.machines.cpu.norm import norm_rows
from mkport.machines.cpu.vector import (
    add,
    body,
    div,
    exp,
    get_i32,
    join_sums,
    mul,
    splat,
    sub,
    zeros,
)


@body
def gemm_silu(a, tile, arena):
    """y[block, 16 columns] = silu(x w_gate^T) * (x w_up^T)."""
    columns = (a.n + 15) // 16
    n0 = tile % columns * 16
    rows = min(16, a.n - n0)
    tokens = get_i32(a.count, 0)
    ups = arena + 12288  # behind dot_tile's share for the gates
    t0 = tile // columns * a.block
    if a.block > 0:
        tokens = min(tokens, t0 + a.block)
    while t0 < tokens:
        group = dot_group(t0, tokens)  # tokens that share each weight that is loaded
        x, x_at = a.x, t0 * a.k
        if a.norm_w != 0:
            x, x_at = arena + 24576, 0  # behind all else
            norm_rows(a.x, a.norm_w, t0, group, a.k, a.norm_eps, x)
        dot_tile(a.w_gate, n0 * a.k, rows, x, x_at, tokens, a.k, t0, arena)
        dot_tile(a.w_up, n0 * a.k, rows, x, x_at, tokens, a.k, t0, ups)
        for t in range(group):
            gate = join_sums(arena, t * 256)
            silu = div(gate, add(splat(1.0), exp(sub(zeros(), gate))))
            y = mul(silu, join_sums(ups, t * 256))
            put_rows(a.y, (t0 + t) * a.n + n0, y, rows, arena)
        t0 += group
