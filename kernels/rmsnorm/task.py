"""The rmsnorm body: one token, group by group."""

from mkport.machines.cpu.norm import norm_row
from mkport.machines.cpu.vector import body, get_i32


@body
def rmsnorm(a, tile, arena):
    """y[tile] = x[tile] / sqrt(mean square + eps) * w, in each group."""
    if tile >= get_i32(a.count, 0):
        return
    for group in range(a.groups):
        norm_row(a.x, a.w, a.y, (tile * a.groups + group) * a.k, a.k, a.eps, 0)
