"""The sample_join body: one row's parts in index order."""

from mkport.machines.cpu.vector import body, get_f32, get_i32, set_i32


@body
def sample_join(a, tile, arena):
    """y[tile] = the index that the row's largest value has, -1 where a part has none."""
    if tile >= get_i32(a.count, 0):
        return
    row = tile * a.parts
    first = row
    for part in range(row, row + a.parts):
        if get_i32(a.at, part) < 0:
            first = part
            break
        if get_f32(a.best, part) > get_f32(a.best, first):
            first = part
    set_i32(a.y, tile, get_i32(a.at, first))
