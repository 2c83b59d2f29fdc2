"""The moe_group body: the step's pairs by expert."""

from mkport.machines.cpu.pairs import group_pairs
from mkport.machines.cpu.vector import body, get_i32


@body
def moe_group(a, tile, arena):
    """slots and pairs from ids."""
    count = get_i32(a.count, 0) * a.k
    group_pairs(a.ids, count, a.experts, a.most, a.slots, a.slot_count, a.pairs, arena)
