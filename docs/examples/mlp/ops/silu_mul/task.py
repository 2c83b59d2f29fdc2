"""The silu_mul body: one row, 16 columns at a time."""

from mkport.machines.cpu.vector import (
    add,
    body,
    div,
    exp,
    load_f32,
    mul,
    splat,
    store_f32,
    sub,
    zeros,
)


@body
def silu_mul(a, tile, arena):
    """y[tile] = silu(x[tile, :n]) * x[tile, n:]."""
    at = tile * 2 * a.n
    for i in range(0, a.n, 16):
        gate = load_f32(a.x, at + i)
        sigmoid = div(splat(1.0), add(splat(1.0), exp(sub(zeros(), gate))))
        store_f32(a.y, tile * a.n + i, mul(mul(gate, sigmoid), load_f32(a.x, at + a.n + i)))
