"""The step's (token, choice) pairs grouped by expert: a counting sort that serves the op that only
groups and the one that chooses too. What the slots mean is the op `moe_group`'s business."""

import numpy as np

from mkport.machines.cpu.vector import body, get_i32, set_i32


@body
def group_pairs(ids, count, experts, most, slots, slot_count, pairs, arena):
    """Slots and pairs from the experts `ids` of `count` pairs, below 0 for none; slots of up to
    `most` pairs (0: any number). The arena holds where each expert's next pair goes."""
    for e in range(experts):
        set_i32(arena, e, np.int32(0))
    for p in range(count):
        e = get_i32(ids, p)
        if e >= 0:
            set_i32(arena, e, np.int32(get_i32(arena, e) + 1))
    slot, first = 0, 0
    for e in range(experts):
        here = get_i32(arena, e)
        set_i32(arena, e, np.int32(first))
        end = first + here
        while first < end:
            set_i32(slots, 2 * slot, np.int32(e))
            set_i32(slots, 2 * slot + 1, np.int32(first))
            slot += 1
            first = min(first + most, end) if most > 0 else end
    for s in range(slot, slot_count + 1):
        set_i32(slots, 2 * s, np.int32(-1))
        set_i32(slots, 2 * s + 1, np.int32(first))
    for p in range(count):
        e = get_i32(ids, p)
        if e >= 0:
            place = get_i32(arena, e)
            set_i32(pairs, place, np.int32(p))
            set_i32(arena, e, np.int32(place + 1))
