"""The body of example for the CPU machine: one row, 16 columns at a time."""

from mkport.machines.cpu.vector import body, load_f32, mul, splat, store_f32


@body
def example(a, tile, arena):
    """y[tile] = factor * x[tile]. Tensors are addresses; helpers' names start with the op's."""
    at = tile * a.n
    for i in range(0, a.n, 16):
        store_f32(a.y, at + i, mul(splat(a.factor), load_f32(a.x, at + i)))
