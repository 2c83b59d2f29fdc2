"""The rms_norm body: one row, column by column."""

import numpy as np

from mkport.machines.cpu.vector import body, get_f32, set_f32


@body
def rms_norm(a, tile, arena):
    """y[tile] = x[tile] / sqrt(mean square + eps) * w."""
    at = tile * a.n
    total = np.float32(0)
    for i in range(a.n):
        total += get_f32(a.x, at + i) * get_f32(a.x, at + i)
    r = np.float32(1) / np.sqrt(total / np.float32(a.n) + a.eps)
    for i in range(a.n):
        set_f32(a.y, at + i, get_f32(a.x, at + i) * r * get_f32(a.w, i))
