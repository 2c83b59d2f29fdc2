"""The layernorm body: one token."""

from mkport.machines.cpu.norm import norm_row
from mkport.machines.cpu.vector import body, get_i32


@body
def layernorm(a, tile, arena):
    """y[tile] = (x[tile] - mean) / sqrt(variance + eps) * w."""
    if tile < get_i32(a.count, 0):
        norm_row(a.x, a.w, a.y, tile * a.k, a.k, a.eps, 1)
