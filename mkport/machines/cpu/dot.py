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
    a0, a1, a2 = tail_three(w, w_at, x, x_at, whole, k, a0, a1, a2)
    store_f32(out, out_at, add(add(a0, a1), add(a2, a3)))


@body
def row_two(w, w_at, x, at, first, end, chains, out, out_at, last):
    """One weight row times two tokens, k from `first` to `end`, all four chains of each.

    `at` [2 or more] holds the tokens' first elements in `x`. Goes on from `chains` [2 tokens, 4
    chains, 16 lanes] unless `first` is 0, and leaves it there unless this is the `last` part: then
    the joined chains go to `out`, tokens 256 apart.
    """
    x0, x1 = at[0], at[1]
    a0, a1, a2, a3 = get_four(chains, 0, first)
    b0, b1, b2, b3 = get_four(chains, 64, first)
    whole = end - (end - first) % 64
    for i in range(first, whole, 64):
        w0, w1 = load_weight(w, w_at + i), load_weight(w, w_at + i + 16)
        w2, w3 = load_weight(w, w_at + i + 32), load_weight(w, w_at + i + 48)
        a0, a1 = fma(w0, load_f32(x, x0 + i), a0), fma(w1, load_f32(x, x0 + i + 16), a1)
        a2, a3 = fma(w2, load_f32(x, x0 + i + 32), a2), fma(w3, load_f32(x, x0 + i + 48), a3)
        b0, b1 = fma(w0, load_f32(x, x1 + i), b0), fma(w1, load_f32(x, x1 + i + 16), b1)
        b2, b3 = fma(w2, load_f32(x, x1 + i + 32), b2), fma(w3, load_f32(x, x1 + i + 48), b3)
    a0, a1, a2 = tail_three(w, w_at, x, x0, whole, end, a0, a1, a2)
    b0, b1, b2 = tail_three(w, w_at, x, x1, whole, end, b0, b1, b2)
    put_chains(chains, 0, out, out_at, last, a0, a1, a2, a3)
    put_chains(chains, 64, out, out_at + 256, last, b0, b1, b2, b3)


@body
def row_four(w, w_at, x, at, first, end, chains, out, out_at, last):
    """`row_two` for four tokens: `at` [4], `chains` [4 tokens, 4 chains, 16 lanes]."""
    x0, x1, x2, x3 = at
    a0, a1, a2, a3 = get_four(chains, 0, first)
    b0, b1, b2, b3 = get_four(chains, 64, first)
    c0, c1, c2, c3 = get_four(chains, 128, first)
    d0, d1, d2, d3 = get_four(chains, 192, first)
    whole = end - (end - first) % 64
    for i in range(first, whole, 64):
        w0, w1 = load_weight(w, w_at + i), load_weight(w, w_at + i + 16)
        w2, w3 = load_weight(w, w_at + i + 32), load_weight(w, w_at + i + 48)
        a0, a1 = fma(w0, load_f32(x, x0 + i), a0), fma(w1, load_f32(x, x0 + i + 16), a1)
        a2, a3 = fma(w2, load_f32(x, x0 + i + 32), a2), fma(w3, load_f32(x, x0 + i + 48), a3)
        b0, b1 = fma(w0, load_f32(x, x1 + i), b0), fma(w1, load_f32(x, x1 + i + 16), b1)
        b2, b3 = fma(w2, load_f32(x, x1 + i + 32), b2), fma(w3, load_f32(x, x1 + i + 48), b3)
        c0, c1 = fma(w0, load_f32(x, x2 + i), c0), fma(w1, load_f32(x, x2 + i + 16), c1)
        c2, c3 = fma(w2, load_f32(x, x2 + i + 32), c2), fma(w3, load_f32(x, x2 + i + 48), c3)
        d0, d1 = fma(w0, load_f32(x, x3 + i), d0), fma(w1, load_f32(x, x3 + i + 16), d1)
        d2, d3 = fma(w2, load_f32(x, x3 + i + 32), d2), fma(w3, load_f32(x, x3 + i + 48), d3)
    a0, a1, a2 = tail_three(w, w_at, x, x0, whole, end, a0, a1, a2)
    b0, b1, b2 = tail_three(w, w_at, x, x1, whole, end, b0, b1, b2)
    c0, c1, c2 = tail_three(w, w_at, x, x2, whole, end, c0, c1, c2)
    d0, d1, d2 = tail_three(w, w_at, x, x3, whole, end, d0, d1, d2)
    put_chains(chains, 0, out, out_at, last, a0, a1, a2, a3)
    put_chains(chains, 64, out, out_at + 256, last, b0, b1, b2, b3)
    put_chains(chains, 128, out, out_at + 512, last, c0, c1, c2, c3)
    put_chains(chains, 192, out, out_at + 768, last, d0, d1, d2, d3)


@body
def tail_three(w, w_at, x, x_at, whole, end, a0, a1, a2):
    """Up to three slices behind the whole rounds of four chains."""
    if whole < end:
        a0 = fma(load_weight(w, w_at + whole), load_f32(x, x_at + whole), a0)
    if whole + 16 < end:
        a1 = fma(load_weight(w, w_at + whole + 16), load_f32(x, x_at + whole + 16), a1)
    if whole + 32 < end:
        a2 = fma(load_weight(w, w_at + whole + 32), load_f32(x, x_at + whole + 32), a2)
    return a0, a1, a2


@body
def get_four(chains, at, resume):
    """A token's four chains, or zeros to begin with."""
    if resume:
        return (
            load_f32(chains, at),
            load_f32(chains, at + 16),
            load_f32(chains, at + 32),
            load_f32(chains, at + 48),
        )
    return zeros(), zeros(), zeros(), zeros()


@body
def put_chains(chains, at, out, out_at, last, a, b, c, d):
    """Stores a token's four chains, or joins them when this is the last part."""
    if last:
        store_f32(out, out_at, add(add(a, b), add(c, d)))
    else:
        store_f32(chains, at, a)
        store_f32(chains, at + 16, b)
        store_f32(chains, at + 32, c)
        store_f32(chains, at + 48, d)


@body
def dot_rows(w, w_at, rows, x, at, tokens, k, arena):
    """Up to 16 weight rows times up to 4 tokens, before the lanes are joined.

    `at` [4] holds the tokens' first elements in `x`; those behind `tokens` are not read. `arena`
    float32 [4 tokens, 16 rows, 16 lanes] receives the result; behind it lies scratch (12 KB
    in all: DOT_ARENA of gemm's declaration). Read a token's outputs by `join_sums(arena, token *
    256)`.
    """
    if tokens == 1:
        for r in range(rows):
            dot_one(w, w_at + r * k, x, at[0], k, arena, r * 16)
        return
    if tokens == 3:
        at = (at[0], at[1], at[2], at[2])
    part = k if k <= 1536 else 1024  # the tokens' k of a part stay in the nearest cache,
    for r0 in range(0, rows, 8):  # with the chains of eight rows
        for first in range(0, k, part):
            end = min(first + part, k)
            for r in range(r0, min(r0 + 8, rows)):
                row, chains = w_at + r * k, arena + 4096 + (r - r0) * 1024
                if tokens == 2:
                    row_two(w, row, x, at, first, end, chains, arena, r * 16, end == k)
                else:
                    row_four(w, row, x, at, first, end, chains, arena, r * 16, end == k)


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
