"""Dot products in the project's arithmetic order, for up to three tokens at a time.

The order of y = sum over k of w[k] * x[k]: the 16-element slice number i goes to chain i % 4,
lane by lane with fused multiply-add; then chains (0 + 1) + (2 + 3), then the lanes (`join_sum`).
It is the same in every function here, so a row's bits do not depend on the batch.

For a few tokens memory is what takes time: weights are read row after row, as the prefetcher likes
it (`row_two`, `row_three`). For more it is arithmetic: four rows and two or three tokens share
what is loaded (`near_three`, `near_two`), and while a tile's first tokens are multiplied, the next
tile is brought nearer, little by little, so that nobody waits for memory. For many a tile's weights
are widened once: a processor may have fewer places for that than for multiplying.
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
    touch_weight,
    zeros,
)

NEAR = 2048  # the longest rows of which two tiles stay near, in elements
MANY = 12  # tokens for which a tile's weights are widened once


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
def row_three(w, w_at, x, at, first, end, chains, out, out_at, last):
    """`row_two` for three tokens."""
    x0, x1, x2 = at
    a0, a1, a2, a3 = get_four(chains, 0, first)
    b0, b1, b2, b3 = get_four(chains, 64, first)
    c0, c1, c2, c3 = get_four(chains, 128, first)
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
    a0, a1, a2 = tail_three(w, w_at, x, x0, whole, end, a0, a1, a2)
    b0, b1, b2 = tail_three(w, w_at, x, x1, whole, end, b0, b1, b2)
    c0, c1, c2 = tail_three(w, w_at, x, x2, whole, end, c0, c1, c2)
    put_chains(chains, 0, out, out_at, last, a0, a1, a2, a3)
    put_chains(chains, 64, out, out_at + 256, last, b0, b1, b2, b3)
    put_chains(chains, 128, out, out_at + 512, last, c0, c1, c2, c3)


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
def widen_rows(w, w_at, rows, k, wide):
    """Copies `rows` rows of k weights to `wide`, in float32."""
    for i in range(0, rows * k, 16):
        store_f32(wide, i, load_weight(w, w_at + i))


@body
def near_load(w, at, k, wide):
    """The same 16 columns of four weight rows, which are `wide` (1) or not (0)."""
    if wide:
        w0, w1 = load_f32(w, at), load_f32(w, at + k)
        return w0, w1, load_f32(w, at + 2 * k), load_f32(w, at + 3 * k)
    w0, w1 = load_weight(w, at), load_weight(w, at + k)
    return w0, w1, load_weight(w, at + 2 * k), load_weight(w, at + 3 * k)


@body
def near_add(w, v, a):
    """A token's 16 inputs `v` times the columns `w` [4 rows], added to the sums `a` [4 rows]."""
    return fma(w[0], v, a[0]), fma(w[1], v, a[1]), fma(w[2], v, a[2]), fma(w[3], v, a[3])


@body
def near_put(out, at, first, a, b):
    """Stores the joined chains 0 and 1 of four rows, or adds the joined chains 2 and 3 to them; `a`
    and `b` [4 rows] are two chains."""
    s0, s1, s2, s3 = add(a[0], b[0]), add(a[1], b[1]), add(a[2], b[2]), add(a[3], b[3])
    if first:
        s0, s1 = add(load_f32(out, at), s0), add(load_f32(out, at + 16), s1)
        s2, s3 = add(load_f32(out, at + 32), s2), add(load_f32(out, at + 48), s3)
    store_f32(out, at, s0)
    store_f32(out, at + 16, s1)
    store_f32(out, at + 32, s2)
    store_f32(out, at + 48, s3)


@body
def near_three(w, w_at, wide, x, at, k, first, next_w, next_at, out, out_at, apart):
    """Four weight rows, `wide` or not, times three tokens, which begin in `x` at `at` [3]: two of
    the four chains, those from column `first`, 0 or 32, on. Each of the 24 sums stays in a
    register. Of two rows of the tile behind, element `next_at` of `next_w` on, these columns are
    brought nearer, unless it is 0."""
    x0, x1, x2 = at
    none = zeros(), zeros(), zeros(), zeros()
    a0, a1, a2 = none, none, none
    b0, b1, b2 = none, none, none
    whole = k - k % 64
    for i in range(first, whole, 64):
        if next_at:
            touch_weight(next_w, next_at + i)
            touch_weight(next_w, next_at + k + i)
        four = near_load(w, w_at + i, k, wide)
        a0 = near_add(four, load_f32(x, x0 + i), a0)
        a1 = near_add(four, load_f32(x, x1 + i), a1)
        a2 = near_add(four, load_f32(x, x2 + i), a2)
        four = near_load(w, w_at + i + 16, k, wide)
        b0 = near_add(four, load_f32(x, x0 + i + 16), b0)
        b1 = near_add(four, load_f32(x, x1 + i + 16), b1)
        b2 = near_add(four, load_f32(x, x2 + i + 16), b2)
    i = whole + first
    if i < k:
        four = near_load(w, w_at + i, k, wide)
        a0 = near_add(four, load_f32(x, x0 + i), a0)
        a1 = near_add(four, load_f32(x, x1 + i), a1)
        a2 = near_add(four, load_f32(x, x2 + i), a2)
    i += 16
    if i < k:
        four = near_load(w, w_at + i, k, wide)
        b0 = near_add(four, load_f32(x, x0 + i), b0)
        b1 = near_add(four, load_f32(x, x1 + i), b1)
        b2 = near_add(four, load_f32(x, x2 + i), b2)
    near_put(out, out_at, first, a0, b0)
    near_put(out, out_at + apart, first, a1, b1)
    near_put(out, out_at + 2 * apart, first, a2, b2)


@body
def near_two(w, w_at, wide, x, at, k, first, next_w, next_at, out, out_at, apart):
    """`near_three` for two tokens, which begin at `at` [2 or more]: 16 sums."""
    x0, x1 = at[0], at[1]
    none = zeros(), zeros(), zeros(), zeros()
    a0, a1, b0, b1 = none, none, none, none
    whole = k - k % 64
    for i in range(first, whole, 64):
        if next_at:
            touch_weight(next_w, next_at + i)
            touch_weight(next_w, next_at + k + i)
        four = near_load(w, w_at + i, k, wide)
        a0 = near_add(four, load_f32(x, x0 + i), a0)
        a1 = near_add(four, load_f32(x, x1 + i), a1)
        four = near_load(w, w_at + i + 16, k, wide)
        b0 = near_add(four, load_f32(x, x0 + i + 16), b0)
        b1 = near_add(four, load_f32(x, x1 + i + 16), b1)
    i = whole + first
    if i < k:
        four = near_load(w, w_at + i, k, wide)
        a0 = near_add(four, load_f32(x, x0 + i), a0)
        a1 = near_add(four, load_f32(x, x1 + i), a1)
    i += 16
    if i < k:
        four = near_load(w, w_at + i, k, wide)
        b0 = near_add(four, load_f32(x, x0 + i), b0)
        b1 = near_add(four, load_f32(x, x1 + i), b1)
    near_put(out, out_at, first, a0, b0)
    near_put(out, out_at + apart, first, a1, b1)


@body
def near_rows(w, w_at, rows, wide, x, at, tokens, k, ahead, arena):
    """`dot_rows` for two or three tokens, `at` [3], while half of the rows that lie `ahead`
    elements on come nearer, unless it is 0. `wide` is where the rows are in float32, or 0."""
    fours = rows - rows % 4
    for r in range(0, fours, 4):
        row, to = w_at + r * k, r * 16
        behind = row + ahead if ahead else 0
        if wide and tokens == 3:
            near_three(wide, r * k, 1, x, at, k, 0, w, behind, arena, to, 256)
            near_three(wide, r * k, 1, x, at, k, 32, w, behind, arena, to, 256)
        elif wide:
            near_two(wide, r * k, 1, x, at, k, 0, w, behind, arena, to, 256)
            near_two(wide, r * k, 1, x, at, k, 32, w, behind, arena, to, 256)
        elif tokens == 3:
            near_three(w, row, 0, x, at, k, 0, w, behind, arena, to, 256)
            near_three(w, row, 0, x, at, k, 32, w, behind, arena, to, 256)
        else:
            near_two(w, row, 0, x, at, k, 0, w, behind, arena, to, 256)
            near_two(w, row, 0, x, at, k, 32, w, behind, arena, to, 256)
    for t in range(tokens):
        for r in range(fours, rows):
            dot_one(w, w_at + r * k, x, at[t], k, arena, r * 16 + t * 256)


@body
def dot_group(done, tokens):
    """How many of a tile's `tokens` come next when `done` have been: up to three, and no single
    one behind others."""
    left = tokens - done
    return 2 if left == 4 else min(left, 3)


@body
def dot_rows(w, w_at, rows, wide, x, at, tokens, k, done, arena):
    """Up to 16 weight rows times the next of a tile's `tokens`, before the lanes are joined.

    `done` of them came before, and `dot_group` says how many come next; `at` [3] holds their first
    elements in `x`, and those behind them are not read. `arena` float32 [3 tokens, 16 rows, 16
    lanes] receives the result; behind it lies scratch (12 KB in all: DOT_ARENA of gemm's
    declaration). Read a token's outputs by `join_sums(arena, token * 256)`. `wide` is room for the
    rows in float32, which this tile's next tokens find there (`wide_bytes` of gemm's declaration).
    """
    group = dot_group(done, tokens)
    many = tokens >= MANY and k <= NEAR
    if many and done == 0:
        widen_rows(w, w_at, rows, k, wide)
    if done > 0 or (tokens > 3 and k <= NEAR):
        ahead = 0
        if done < 4 and k <= NEAR:  # the first two groups bring the next tile, half each
            ahead = rows * k + (2 * k if done else 0)
        near_rows(w, w_at, rows, wide if many else 0, x, at, group, k, ahead, arena)
        return
    if group == 1:
        for r in range(rows):
            dot_one(w, w_at + r * k, x, at[0], k, arena, r * 16)
        return
    part = k if k <= 1536 else 1024  # the tokens' k of a part stay in the nearest cache,
    for r0 in range(0, rows, 8):  # with the chains of eight rows
        for first in range(0, k, part):
            end = min(first + part, k)
            for r in range(r0, min(r0 + 8, rows)):
                row, chains = w_at + r * k, arena + 4096 + (r - r0) * 1024
                if group == 2:
                    row_two(w, row, x, at, first, end, chains, arena, r * 16, end == k)
                else:
                    row_three(w, row, x, at, first, end, chains, arena, r * 16, end == k)


@body
def dot_tile(w, w_at, rows, wide, x, x_at, tokens, k, done, arena):
    """`dot_rows` for tokens that lie one after another, the next one's first element at `x_at`."""
    at = (x_at, x_at + k, x_at + 2 * k)
    dot_rows(w, w_at, rows, wide, x, at, tokens, k, done, arena)


@body
def put_rows(out, at, value, rows, arena):
    """Stores the first `rows` lanes; `arena` (64 bytes) serves a tile shorter than a vector."""
    if rows == 16:
        store_f32(out, at, value)
    else:
        store_f32(arena, 0, value)
        for r in range(rows):
            set_f32(out, at + r, get_f32(arena, r))
