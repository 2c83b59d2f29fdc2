"""The argmax body: one row, block by block; only the block that holds the answer is searched."""

from mkport.machines.cpu.vector import (
    add,
    body,
    get_f32,
    get_i32,
    join_max,
    join_sum,
    largest,
    load_f32,
    set_i32,
    sub,
    zeros,
)


@body
def argmax(a, tile, arena):
    """y[tile] = the first index of the row's largest value, -1 where a value is not finite."""
    if tile >= get_i32(a.count, 0):
        return
    at, n = tile * a.n, a.n
    best, block = get_f32(a.x, at), 0
    strange = zeros()  # x - x is zero, or a NaN where x is not finite
    whole = n - n % 16
    for first in range(0, whole, 512):
        top = load_f32(a.x, at + first)
        for i in range(first, min(first + 512, whole), 16):
            v = load_f32(a.x, at + i)
            top = largest(v, top)
            strange = add(strange, sub(v, v))
        value = join_max(top)
        if value > best:  # a later block that only equals it has the higher indices
            best, block = value, first
    finite = join_sum(strange) == 0
    for i in range(whole, n):
        value = get_f32(a.x, at + i)
        finite = finite and value - value == 0
        if value > best:
            best, block = value, i
    found = block
    while finite and get_f32(a.x, at + found) != best:
        found += 1
    set_i32(a.y, tile, found if finite else -1)
