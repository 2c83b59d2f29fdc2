"""The moe_down body: 16 output columns of one expert for each of its pairs."""

from mkport.machines.cpu.dot import dot_group, dot_tile, put_rows
from mkport.machines.cpu.vector import body, get_i32, join_sums


@body
def moe_down(a, tile, arena):
    """y[pairs of a slot, 16 columns] = act w^T."""
    slot = a.first_slot + tile * a.slot_step % a.slot_count
    n0 = tile // a.slot_count * 16
    expert = get_i32(a.slots, 2 * slot)
    if expert < 0:
        return
    rows = min(16, a.n - n0)
    first, end = get_i32(a.slots, 2 * slot + 1), get_i32(a.slots, 2 * slot + 3)
    w, wide = (expert * a.n + n0) * a.k, arena + 12288  # behind dot_tile's share
    p = first
    while p < end:
        group = dot_group(p - first, end - first)  # pairs that share each weight that is loaded
        dot_tile(a.w, w, rows, wide, a.act, p * a.k, end - first, a.k, p - first, arena)
        for t in range(group):
            y = get_i32(a.pairs, p + t) * a.n + n0
            put_rows(a.y, y, join_sums(arena, t * 256), rows, arena)
        p += group
