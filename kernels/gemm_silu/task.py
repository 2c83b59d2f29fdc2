"""The gemm_silu body: 16 output columns for every token of a block."""

from mkport.machines.cpu.dot import MANY, NEAR, dot_group, dot_tile, put_rows
from mkport.machines.cpu.many import dot_many
from mkport.machines.cpu.norm import norm_rows
from mkport.machines.cpu.vector import (
    add,
    body,
    div,
    exp,
    get_i32,
    join_sums,
    load_f32,
    mul,
    splat,
    store_f32,
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
    first = tile // columns * a.block
    if a.block > 0:
        tokens = min(tokens, first + a.block)
    count = max(tokens - first, 0)
    if count >= MANY and rows == 16 and a.norm_w == 0 and a.k <= NEAR:
        gemm_silu_many(a, n0, first, count, arena)
        return
    gates = arena + 24576 + (12 * a.k if a.norm_w != 0 else 0)  # behind dot_tile's shares, a norm's
    wide = gates + 64 * count
    # the nearest cache holds one widened tile: all gates come first
    apart = count >= MANY and a.k <= NEAR
    if apart:
        gemm_silu_gates(a, n0, rows, wide, first, count, arena, gates)
    done = 0
    while done < count:
        t0, group = first + done, dot_group(done, count)  # tokens that share what is loaded
        x, x_at = gemm_silu_rows(a, t0, group, arena)
        if not apart:
            dot_tile(a.w_gate, n0 * a.k, rows, wide, x, x_at, count, a.k, done, arena)
        dot_tile(a.w_up, n0 * a.k, rows, wide, x, x_at, count, a.k, done, ups)
        for t in range(group):
            if apart:
                gate = load_f32(gates, (done + t) * 16)
            else:
                gate = join_sums(arena, t * 256)
            silu = div(gate, add(splat(1.0), exp(sub(zeros(), gate))))
            y = mul(silu, join_sums(ups, t * 256))
            put_rows(a.y, (t0 + t) * a.n + n0, y, rows, arena)
        done += group


@body
def gemm_silu_many(a, n0, first, count, arena):
    """A whole tile of `count` tokens from `first` on, which share weights that are widened once."""
    gates = arena + 12288 + 64 * a.k  # behind dot_many's share
    ups = gates + 64 * (count + 3)
    w, half, x_at = n0 * a.k, 8 * a.k, first * a.k
    dot_many(a.w_gate, w, w + half, 16 * a.k, a.k, a.x, x_at, count, gates, arena)
    dot_many(a.w_up, w, w + half, 16 * a.k, a.k, a.x, x_at, count, ups, arena)
    for t in range(count):
        gate = load_f32(gates, t * 16)
        silu = div(gate, add(splat(1.0), exp(sub(zeros(), gate))))
        store_f32(a.y, (first + t) * a.n + n0, mul(silu, load_f32(ups, t * 16)))


@body
def gemm_silu_gates(a, n0, rows, wide, first, count, arena, gates):
    """gates [count, 16] = x w_gate^T of a tile's columns, for `count` tokens from `first` on."""
    done = 0
    while done < count:
        group = dot_group(done, count)
        x, x_at = gemm_silu_rows(a, first + done, group, arena)
        dot_tile(a.w_gate, n0 * a.k, rows, wide, x, x_at, count, a.k, done, arena)
        for t in range(group):
            store_f32(gates, (done + t) * 16, join_sums(arena, t * 256))
        done += group


@body
def gemm_silu_rows(a, t0, group, arena):
    """Where the inputs of `group` tokens from t0 on are, normed if asked: (address, element)."""
    if a.norm_w == 0:
        return a.x, t0 * a.k
    x = arena + 24576  # behind dot_tile's shares
    norm_rows(a.x, a.norm_w, t0, group, a.k, a.norm_eps, x)
    return x, 0
