"""Dot products of 16 weight rows with many tokens, in the arithmetic order of dot.py.

A few rows at a time are widened once for all tokens, so few that they stay in the nearest cache;
the lanes of many sums are joined together, while they are still there.
"""

from mkport.machines.cpu.dot import dot_group, near_three, near_two, widen_rows
from mkport.machines.cpu.vector import body, join_sums, store_eights, store_fours

MANY_HELD = 12  # tokens whose lanes are joined together
MANY_NEAR = 6144  # weights that stay in the nearest cache in float32, beside the tokens' inputs


@body
def dot_many(w, upper, lower, ahead, k, x, x_at, tokens, sums, arena):
    """sums [tokens, 16] = the tokens' products with eight weight rows at element `upper` of `w` and
    eight at `lower`.

    The tokens' inputs lie one after another from element `x_at` of `x` on. While they are
    multiplied, the rows `ahead` elements on come nearer. `sums` has room for 3 tokens more. `arena`
    holds lanes, and behind them the widened rows: 6 KB and up to 32 k bytes.
    """
    rows = 8 if 8 * k <= MANY_NEAR else 4
    for r in range(0, 16, rows):
        row = upper + r * k if r < 8 else lower + (r - 8) * k
        dot_many_rows(w, row, rows, ahead, k, x, x_at, tokens, sums + 4 * r, arena)


@body
def dot_many_rows(w, row, rows, ahead, k, x, x_at, tokens, sums, arena):
    """`dot_many` of 4 or 8 rows, from element `row` of `w` on."""
    wide = arena + 4 * 16 * 8 * MANY_HELD
    widen_rows(w, row, rows, k, wide)
    done, held = 0, 0
    while done < tokens:
        group = dot_group(done, tokens)
        first = x_at + done * k
        at = (first, first + k, first + 2 * k)
        behind = row + ahead + (2 * k if done else 0) if done < 4 else 0  # two groups, half each
        for r in range(0, rows, 4):
            near, to = behind + r * k if behind else 0, (held * rows + r) * 16
            if group == 3:
                near_three(wide, r * k, 1, x, at, k, 0, w, near, arena, to, rows * 16)
                near_three(wide, r * k, 1, x, at, k, 32, w, near, arena, to, rows * 16)
            else:
                near_two(wide, r * k, 1, x, at, k, 0, w, near, arena, to, rows * 16)
                near_two(wide, r * k, 1, x, at, k, 32, w, near, arena, to, rows * 16)
        done += group
        held += group
        if done == tokens or held + 3 > MANY_HELD:
            dot_many_join(arena, held, rows, sums + 64 * (done - held))
            held = 0


@body
def dot_many_join(arena, tokens, rows, sums):
    """sums [tokens, rows of 16] = the joined lanes, [tokens, rows, 16 lanes] in the arena."""
    for i in range(0, tokens * rows, 16):
        joined = join_sums(arena, i * 16)
        if rows == 8:
            store_eights(sums, i * 2, joined)
        else:
            store_fours(sums, i * 4, joined)
