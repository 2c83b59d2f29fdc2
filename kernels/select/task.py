"""The select body: one wanted row."""

from mkport.machines.cpu.vector import body, get_i32, load_f32, store_f32


@body
def select(a, tile, arena):
    """y[tile] = x[index[tile]]."""
    if tile >= get_i32(a.count, 0):
        return
    there = get_i32(a.index, tile) * a.k
    for i in range(0, a.k, 16):
        store_f32(a.y, tile * a.k + i, load_f32(a.x, there + i))
