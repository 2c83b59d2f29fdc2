"""Dot products in the project's arithmetic order, for one token or four at a time.

The order of y = sum over k of w[k] * x[k]: the 16-element slice number i goes to chain i % 4,
lane by lane with fused multiply-add; then chains (0 + 1) + (2 + 3), then the lanes (`join_sum`).
It is the same whether one token is computed or four, so a row's bits do not depend on the batch.
"""

from mkport.machines.cpu.vector import (
    add,
    body,
    fma,
    get_f32,
    load_f32,
    load_weight,
    set_f32,
    store_f32,
    zeros,
)

TILE_ROWS = 16  # weight rows of a tile: one output vector


@body
def dot_one(w, w_at, x, x_at, k, out, out_at):
    """Stores the 16 lanes of one weight row times one float32 row of k elements (k % 16 == 0)."""
    a0, a1, a2, a3 = zeros(), zeros(), zeros(), zeros()
    whole = k - k % 64
    for i in range(0, whole, 64):
        a0 = fma(load_weight(w, w_at + i), load_f32(x, x_at + i), a0)
        a1 = fma(load_weight(w, w_at + i + 16), load_f32(x, x_at + i + 16), a1)
        a2 = fma(load_weight(w, w_at + i + 32), load_f32(x, x_at + i + 32), a2)
        a3 = fma(load_weight(w, w_at + i + 48), load_f32(x, x_at + i + 48), a3)
    if whole < k:
        a0 = fma(load_weight(w, w_at + whole), load_f32(x, x_at + whole), a0)
    if whole + 16 < k:
        a1 = fma(load_weight(w, w_at + whole + 16), load_f32(x, x_at + whole + 16), a1)
    if whole + 32 < k:
        a2 = fma(load_weight(w, w_at + whole + 32), load_f32(x, x_at + whole + 32), a2)
    store_f32(out, out_at, add(add(a0, a1), add(a2, a3)))


@body
def chain_four(w, w_at, x, at, k, first, out, out_at, join):
    """One chain of four weight rows times four tokens; `join` adds it to what `out` holds."""
    w1, w2, w3 = w_at + k, w_at + 2 * k, w_at + 3 * k
    x0, x1, x2, x3 = at
    a00, a01, a02, a03 = zeros(), zeros(), zeros(), zeros()
    a10, a11, a12, a13 = zeros(), zeros(), zeros(), zeros()
    a20, a21, a22, a23 = zeros(), zeros(), zeros(), zeros()
    a30, a31, a32, a33 = zeros(), zeros(), zeros(), zeros()
    for i in range(first, k, 64):
        r0, r1 = load_weight(w, w_at + i), load_weight(w, w1 + i)
        r2, r3 = load_weight(w, w2 + i), load_weight(w, w3 + i)
        t = load_f32(x, x0 + i)
        a00, a01, a02, a03 = fma(r0, t, a00), fma(r1, t, a01), fma(r2, t, a02), fma(r3, t, a03)
        t = load_f32(x, x1 + i)
        a10, a11, a12, a13 = fma(r0, t, a10), fma(r1, t, a11), fma(r2, t, a12), fma(r3, t, a13)
        t = load_f32(x, x2 + i)
        a20, a21, a22, a23 = fma(r0, t, a20), fma(r1, t, a21), fma(r2, t, a22), fma(r3, t, a23)
        t = load_f32(x, x3 + i)
        a30, a31, a32, a33 = fma(r0, t, a30), fma(r1, t, a31), fma(r2, t, a32), fma(r3, t, a33)
    put_four(out, out_at, a00, a01, a02, a03, join)
    put_four(out, out_at + 256, a10, a11, a12, a13, join)
    put_four(out, out_at + 512, a20, a21, a22, a23, join)
    put_four(out, out_at + 768, a30, a31, a32, a33, join)


@body
def put_four(out, out_at, a, b, c, d, join):
    """Stores the lanes of four weight rows, added to what is there when `join`."""
    if join:
        a, b = add(load_f32(out, out_at), a), add(load_f32(out, out_at + 16), b)
        c, d = add(load_f32(out, out_at + 32), c), add(load_f32(out, out_at + 48), d)
    store_f32(out, out_at, a)
    store_f32(out, out_at + 16, b)
    store_f32(out, out_at + 32, c)
    store_f32(out, out_at + 48, d)


@body
def dot_rows(w, w_at, rows, x, at, tokens, k, arena):
    """Up to 16 weight rows times up to 4 tokens, before the lanes are joined.

    `at` holds four tokens' first elements in `x`; those behind `tokens` are not read. `arena`
    [2, 4 tokens, 16 rows, 16 lanes] float32 (8 KB): the first half receives the result, the
    second is scratch. Read a token's 16 outputs by `join_sums(arena, token * 256)`.
    """
    fours = rows - rows % 4 if tokens == 4 else 0
    for r in range(0, fours, 4):
        row, there = w_at + r * k, r * 16
        chain_four(w, row, x, at, k, 0, arena, there, False)
        chain_four(w, row, x, at, k, 16, arena, there, True)
        chain_four(w, row, x, at, k, 32, arena, 1024 + there, False)
        chain_four(w, row, x, at, k, 48, arena, 1024 + there, True)
    for t in range(tokens):
        for v in range(t * 256, t * 256 + fours * 16, 16):
            store_f32(arena, v, add(load_f32(arena, v), load_f32(arena, 1024 + v)))
        for r in range(fours, rows):
            dot_one(w, w_at + r * k, x, at[t], k, arena, t * 256 + r * 16)


@body
def dot_tile(w, w_at, rows, x, x_at, tokens, k, arena):
    """`dot_rows` for tokens that lie one after another."""
    at = (x_at, x_at + k, x_at + 2 * k, x_at + 3 * k)
    dot_rows(w, w_at, rows, x, at, tokens, k, arena)


@body
def put_rows(out, at, value, rows, arena):
    """Stores the first `rows` lanes; `arena` (64 bytes) serves a tile shorter than a vector."""
    if rows == 16:
        store_f32(out, at, value)
    else:
        store_f32(arena, 0, value)
        for r in range(rows):
            set_f32(out, at + r, get_f32(arena, r))
