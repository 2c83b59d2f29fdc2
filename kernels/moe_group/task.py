"""The moe_group body: a counting sort of the step's pairs by expert."""

import numpy as np

from mkport.machines.cpu.vector import body, get_i32, set_i32


@body
def moe_group(a, tile, arena):
    """slots and pairs from ids; the arena holds where each expert's next pair goes."""
    pairs = get_i32(a.count, 0) * a.k
    for e in range(a.experts):
        set_i32(arena, e, np.int32(0))
    for p in range(pairs):
        e = get_i32(a.ids, p)
        if e >= 0:
            set_i32(arena, e, np.int32(get_i32(arena, e) + 1))
    slot, first = 0, 0
    for e in range(a.experts):
        here = get_i32(arena, e)
        set_i32(arena, e, np.int32(first))
        end = first + here
        while first < end:
            set_i32(a.slots, 2 * slot, np.int32(e))
            set_i32(a.slots, 2 * slot + 1, np.int32(first))
            slot += 1
            first = min(first + a.most, end) if a.most > 0 else end
    for s in range(slot, a.slot_count + 1):
        set_i32(a.slots, 2 * s, np.int32(-1))
        set_i32(a.slots, 2 * s + 1, np.int32(first))
    for p in range(pairs):
        e = get_i32(a.ids, p)
        if e >= 0:
            place = get_i32(arena, e)
            set_i32(a.pairs, place, np.int32(p))
            set_i32(arena, e, np.int32(place + 1))
