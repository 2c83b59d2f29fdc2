"""The moe_up body: 8 columns of one expert for each of its tokens."""

from mkport.machines.cpu.dot import dot_group, dot_rows, put_rows
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
def moe_up(a, tile, arena):
    """act[pairs of a slot, 8 columns] = silu(x w_gate^T) * (x w_up^T)."""
    slot = a.first_slot + tile * a.slot_step % a.slot_count
    n0 = tile // a.slot_count * 8
    expert = get_i32(a.slots, 2 * slot)
    if expert < 0:
        return
    rows = min(8, a.n - n0)
    gate_at = (expert * (a.n + a.up_row) + n0) * a.k
    up_at = gate_at + a.up_row * a.k
    ups = arena + 4 * 16 * 8  # of a token's 16 sums the gates are the first 8, the ups the others
    first, end = get_i32(a.slots, 2 * slot + 1), get_i32(a.slots, 2 * slot + 3)
    wide = arena + 12800  # behind both products' shares
    p, pairs = first, end - first
    while p < end:
        done = p - first
        group = dot_group(done, pairs)  # pairs that share each weight that is loaded
        at = (moe_up_row(a, p, end), moe_up_row(a, p + 1, end), moe_up_row(a, p + 2, end))
        dot_rows(a.w_gate, gate_at, rows, wide, a.x, at, pairs, a.k, done, arena)
        dot_rows(a.w_up, up_at, rows, wide + 32 * a.k, a.x, at, pairs, a.k, done, ups)
        for t in range(group):
            both = join_sums(arena, t * 256)
            silu = div(both, add(splat(1.0), exp(sub(zeros(), both))))
            store_f32(arena, t * 256, both)
            act = mul(silu, load_f32(arena, t * 256 + 8))
            put_rows(a.act, (p + t) * a.n + n0, act, rows, arena)
        p += group


@body
def moe_up_row(a, p, end):
    """Where the token of pair number p begins in x; 0 behind the slot's last pair."""
    return get_i32(a.pairs, p) // a.top * a.k if p < end else 0
