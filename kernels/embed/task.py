"""The embed body: one token's row of the table."""

from mkport.machines.cpu.vector import body, get_i32, load_weight, store_f32


@body
def embed(a, tile, arena):
    """y[tile] = table[tokens[tile]]."""
    if tile >= get_i32(a.count, 0):
        return
    there = get_i32(a.tokens, tile) * a.k
    for i in range(0, a.k, 16):
        store_f32(a.y, tile * a.k + i, load_weight(a.table, there + i))
