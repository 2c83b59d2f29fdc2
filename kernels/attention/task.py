"""The attention body: one split of one token's keys, for the query heads of one kv head.

A block of 16 keys passes through three stages, each for all heads of the group: scores, softmax,
values. So a key or value is widened to float32 once, and one head's latency hides another's. A
head's place in the arena: sums [head_dim], vectors m, l and e^(m - m'), 16 weights, and the
partial lanes of 16 scores [16, 16].

Neighbouring tokens of a sequence, as a prompt has them, go another way (`attention_together`).
"""

import numpy as np

from mkport.machines.cpu.lanes import (
    lanes_edge,
    lanes_put,
    lanes_scores,
    lanes_softmax,
    lanes_values,
)
from mkport.machines.cpu.vector import (
    add,
    body,
    div,
    exp,
    fma,
    get_f32,
    get_i32,
    join_max,
    join_sum,
    join_sums,
    keep_lanes,
    largest,
    load_f32,
    load_kv,
    mul,
    set_f32,
    splat,
    store_f32,
    sub,
    touch_kv,
    zeros,
)

ATTENTION_SPLIT = 512  # keys
ATTENTION_AHEAD = 32  # keys: so far on others are brought nearer
ATTENTION_UNSEEN = float("-inf")  # the score of a key that the token does not see
ATTENTION_MANY = 12  # queries of a kv head: so many side by side are quicker than one by one
ATTENTION_TOGETHER = 16  # neighbouring tokens whose queries stay in the nearer caches
ATTENTION_STATE = 320  # of a head in the arena, beside its sums


@body
def attention_tiles(a, first, stride, count, arena):
    """The tiles of a run: those of neighbouring tokens together, the others one by one."""
    each = a.splits * a.kv_heads  # a token's
    i = 0
    while i < count:
        tokens = attention_neighbours(a, first + i, count - i) if stride == 1 else 0
        if tokens * (a.heads // a.kv_heads) >= ATTENTION_MANY:
            attention_together(a, (first + i) // each, tokens, arena)
            i += tokens * each
        else:
            attention(a, first + i * stride, arena)
            i += 1


@body
def attention_neighbours(a, tile, tiles):
    """How many tokens, with all of their tiles from `tile` on, follow one another in a sequence."""
    each = a.splits * a.kv_heads
    token = tile // each
    most = min(min(tiles // each, get_i32(a.count, 0) - token), ATTENTION_TOGETHER)
    if tile % each != 0 or most < 1 or (a.head_dim != 64 and a.head_dim != 128):
        return 0
    sequence, position = get_i32(a.rows, 2 * token), get_i32(a.rows, 2 * token + 1)
    tokens = 1
    while (
        tokens < most
        and get_i32(a.rows, 2 * (token + tokens)) == sequence
        and get_i32(a.rows, 2 * (token + tokens) + 1) == position + tokens
    ):
        tokens += 1
    return tokens


@body
def attention_together(a, token, tokens, arena):
    """All tiles of neighbours, of which `token` is the first: each block of keys and values is
    widened once for all of them, and sixteen queries stand side by side.

    In the arena lie the block's keys and values, weights [16 keys, 16 lanes], then of each sixteen
    queries: the queries [head_dim, 16], sums [16, head_dim], and what `lanes_softmax` says.
    """
    queries = tokens * (a.heads // a.kv_heads)
    sequence, position = get_i32(a.rows, 2 * token), get_i32(a.rows, 2 * token + 1)
    oldest = max(position - a.window + 1, 0) if a.window > 0 else 0
    end = position + tokens
    for kv_head in range(a.kv_heads):
        attention_turn(a, token, kv_head, queries, arena)
        for split in range(oldest // ATTENTION_SPLIT, (end - 1) // ATTENTION_SPLIT + 1):
            base = split * ATTENTION_SPLIT
            attention_open(a, position - base, queries, arena)
            first, stop = max(oldest, base), min(end, base + ATTENTION_SPLIT)
            for block in range(first - first % 16, stop, 16):
                keys = attention_keys(a, sequence, kv_head, block)
                ahead = block + ATTENTION_AHEAD
                if ahead < stop:
                    attention_touch(a, attention_keys(a, sequence, kv_head, ahead))
                unseen = a.window > 0 and block < end - a.window  # of the last one, the oldest
                whole = block + 16 <= position + 1 and not unseen
                attention_block(a, keys, block - base, whole, queries, arena)
            attention_close(a, token, split, kv_head, queries, arena)


@body
def attention_lanes(a, query):
    """Where the sixteen begin, in the arena, among which a query is."""
    return 32 * a.head_dim + 256 + query // 16 * (32 * a.head_dim + 80)


@body
def attention_turn(a, token, kv_head, queries, arena):
    """Turns the queries: sixteen stand side by side, column by column; the last one fills up."""
    group = a.heads // a.kv_heads
    for i in range((queries + 15) // 16 * 16):
        own = min(i, queries - 1)
        q = ((token + own // group) * a.heads + kv_head * group + own % group) * a.head_dim
        lane = attention_lanes(a, i) + i % 16
        for d in range(a.head_dim):
            set_f32(arena, lane + d * 16, get_f32(a.q, q + d))


@body
def attention_open(a, position, queries, arena):
    """No key seen yet, and which keys each query will see; places are counted from the split's
    first key, and `position` is the first token's."""
    group = a.heads // a.kv_heads
    for i in range(0, queries, 16):
        sums = attention_lanes(a, i) + 16 * a.head_dim
        m = sums + 16 * a.head_dim
        for d in range(sums, m, 16):
            store_f32(arena, d, zeros())
        store_f32(arena, m, splat(ATTENTION_UNSEEN))
        store_f32(arena, m + 16, zeros())
        for lane in range(16):
            end = position + min(i + lane, queries - 1) // group + 1
            low = max(end - a.window, 0) if a.window > 0 else 0
            set_f32(arena, m + 48 + lane, np.float32(low))
            set_f32(arena, m + 64 + lane, np.float32(min(end, ATTENTION_SPLIT)))


@body
def attention_block(a, keys, first, whole, queries, arena):
    """Sixteen keys and their values, for all queries; `first` is their place in the split."""
    values, weights = 16 * a.head_dim, 32 * a.head_dim
    for i in range(0, 16 * a.head_dim, 16):
        store_f32(arena, i, load_kv(a.k_pages, keys + i))
        store_f32(arena, values + i, load_kv(a.v_pages, keys + i))
    for i in range(0, queries, 16):
        lanes = attention_lanes(a, i)
        sums, m = lanes + 16 * a.head_dim, lanes + 32 * a.head_dim
        lanes_scores(arena, lanes, 0, a.head_dim, weights)
        lanes_softmax(arena, weights, a.scale, whole, first, m, ATTENTION_UNSEEN)
        if whole:
            lanes_values(arena, sums, weights, values, a.head_dim, m)
        else:
            lanes_edge(arena, sums, weights, values, a.head_dim, m, first)


@body
def attention_close(a, token, split, kv_head, queries, arena):
    """Writes what the queries that see the split found in it."""
    group = a.heads // a.kv_heads
    for i in range(queries):
        lanes = attention_lanes(a, i)
        sums, m = lanes + (16 + i % 16) * a.head_dim, lanes + 32 * a.head_dim + i % 16
        if get_f32(arena, m + 48) < get_f32(arena, m + 64):
            t, head = token + i // group, kv_head * group + i % group
            if a.y != 0:
                attention_quotient(a, sums, m + 16, (t * a.heads + head) * a.head_dim, arena)
            else:
                row = (t * a.splits + split % a.splits) * a.heads + head
                attention_partial(a, sums, m, m + 16, row, arena)


@body
def attention(a, tile, arena):
    """partial[token, place, heads of a kv head]: what the token sees of the split of that place; or
    y[token, columns of these heads], where it sees one split."""
    kv_head, token = tile % a.kv_heads, tile // (a.kv_heads * a.splits)
    place = (tile // a.kv_heads % a.splits + token) * a.split_step % a.splits
    if token >= get_i32(a.count, 0):
        return
    sequence, position = get_i32(a.rows, 2 * token), get_i32(a.rows, 2 * token + 1)
    oldest = max(position - a.window + 1, 0) if a.window > 0 else 0
    split = oldest // ATTENTION_SPLIT  # the first that the token sees; then the one of this place
    split += (place - split) % a.splits
    first, end = split * ATTENTION_SPLIT, min((split + 1) * ATTENTION_SPLIT, position + 1)
    first = max(first, oldest)
    if first >= end:
        return
    group = a.heads // a.kv_heads
    attention_begin(arena, group, a.head_dim)
    q = (token * a.heads + kv_head * group) * a.head_dim
    ahead = ATTENTION_AHEAD
    if token > 0 and get_i32(a.rows, 2 * token - 2) == sequence:
        ahead = end  # the token before has just read these keys
    for block in range(first - first % 16, end, 16):
        keys = attention_keys(a, sequence, kv_head, block)
        if block + ahead < end:
            attention_touch(a, attention_keys(a, sequence, kv_head, block + ahead))
        low, high = max(first - block, 0), min(end - block, 16)
        if a.head_dim == 64:
            attention_scores_64(a, q, keys, group, arena)
        elif a.head_dim == 128:
            attention_scores_128(a, q, keys, group, arena)
        else:
            attention_scores(a, q, keys, group, arena)
        attention_softmax(a, low, high, group, arena)
        if high - low == 16:
            attention_values_16(a, keys, group, arena)
        else:
            attention_values(a, keys, low, high, group, arena)
    if a.y != 0:
        attention_divide(a, q, group, arena)
    else:
        attention_end(a, ((token * a.splits + place) * a.kv_heads + kv_head) * group, group, arena)


@body
def attention_keys(a, sequence, kv_head, block):
    """Where the keys from position `block` on begin, and their values, in elements."""
    page = get_i32(a.page_table, sequence * a.pages_per_sequence + block // a.page)
    return ((page * a.kv_heads + kv_head) * a.page + block % a.page) * a.head_dim


@body
def attention_touch(a, keys):
    """Brings sixteen keys and their values nearer, since memory answers later than they are due."""
    for i in range(0, 16 * a.head_dim, 32):
        touch_kv(a.k_pages, keys + i)
        touch_kv(a.v_pages, keys + i)


@body
def attention_begin(arena, group, head_dim):
    """No key seen yet: sums 0, m -inf, l 0."""
    for g in range(group):
        state = g * (head_dim + ATTENTION_STATE)
        for d in range(0, head_dim, 16):
            store_f32(arena, state + d, zeros())
        store_f32(arena, state + head_dim, splat(ATTENTION_UNSEEN))
        store_f32(arena, state + head_dim + 16, zeros())


@body
def attention_scores(a, q, keys, group, arena):
    """Sixteen keys' products with each query, before their lanes are joined."""
    for g in range(group):
        x, out = q + g * a.head_dim, g * (a.head_dim + ATTENTION_STATE) + a.head_dim + 64
        for j in range(16):
            k = keys + j * a.head_dim
            a0, a1, a2, a3 = zeros(), zeros(), zeros(), zeros()
            whole = a.head_dim - a.head_dim % 64
            for d in range(0, whole, 64):
                a0 = fma(load_kv(a.k_pages, k + d), load_f32(a.q, x + d), a0)
                a1 = fma(load_kv(a.k_pages, k + d + 16), load_f32(a.q, x + d + 16), a1)
                a2 = fma(load_kv(a.k_pages, k + d + 32), load_f32(a.q, x + d + 32), a2)
                a3 = fma(load_kv(a.k_pages, k + d + 48), load_f32(a.q, x + d + 48), a3)
            if whole < a.head_dim:
                a0 = fma(load_kv(a.k_pages, k + whole), load_f32(a.q, x + whole), a0)
            if whole + 16 < a.head_dim:
                a1 = fma(load_kv(a.k_pages, k + whole + 16), load_f32(a.q, x + whole + 16), a1)
            if whole + 32 < a.head_dim:
                a2 = fma(load_kv(a.k_pages, k + whole + 32), load_f32(a.q, x + whole + 32), a2)
            store_f32(arena, out + j * 16, add(add(a0, a1), add(a2, a3)))


@body
def attention_key_64(a, k):
    """The key at element k of the pages: four vectors [4], its 64 columns."""
    k0, k1 = load_kv(a.k_pages, k), load_kv(a.k_pages, k + 16)
    return k0, k1, load_kv(a.k_pages, k + 32), load_kv(a.k_pages, k + 48)


@body
def attention_product_64(k, q0, q1, q2, q3):
    """A key's products with a query, before the lanes are joined: k [4 vectors] and q0 to q3 are
    their 64 columns."""
    a0, a1 = fma(k[0], q0, zeros()), fma(k[1], q1, zeros())
    return add(add(a0, a1), add(fma(k[2], q2, zeros()), fma(k[3], q3, zeros())))


@body
def attention_scores_64(a, q, keys, group, arena):
    """`attention_scores` of 64 columns: four keys stay in registers for all queries."""
    for j in range(0, 16, 4):
        k = keys + j * 64
        ka, kb = attention_key_64(a, k), attention_key_64(a, k + 64)
        kc, kd = attention_key_64(a, k + 128), attention_key_64(a, k + 192)
        for g in range(group):
            x = q + g * 64
            q0, q1 = load_f32(a.q, x), load_f32(a.q, x + 16)
            q2, q3 = load_f32(a.q, x + 32), load_f32(a.q, x + 48)
            out = g * (64 + ATTENTION_STATE) + 128 + j * 16
            store_f32(arena, out, attention_product_64(ka, q0, q1, q2, q3))
            store_f32(arena, out + 16, attention_product_64(kb, q0, q1, q2, q3))
            store_f32(arena, out + 32, attention_product_64(kc, q0, q1, q2, q3))
            store_f32(arena, out + 48, attention_product_64(kd, q0, q1, q2, q3))


@body
def attention_scores_128(a, q, keys, group, arena):
    """`attention_scores` of 128 columns: a key stays in registers for all queries."""
    for j in range(16):
        k = keys + j * 128
        k0, k1 = load_kv(a.k_pages, k), load_kv(a.k_pages, k + 16)
        k2, k3 = load_kv(a.k_pages, k + 32), load_kv(a.k_pages, k + 48)
        k4, k5 = load_kv(a.k_pages, k + 64), load_kv(a.k_pages, k + 80)
        k6, k7 = load_kv(a.k_pages, k + 96), load_kv(a.k_pages, k + 112)
        for g in range(group):
            x = q + g * 128
            a0 = fma(k4, load_f32(a.q, x + 64), fma(k0, load_f32(a.q, x), zeros()))
            a1 = fma(k5, load_f32(a.q, x + 80), fma(k1, load_f32(a.q, x + 16), zeros()))
            a2 = fma(k6, load_f32(a.q, x + 96), fma(k2, load_f32(a.q, x + 32), zeros()))
            a3 = fma(k7, load_f32(a.q, x + 112), fma(k3, load_f32(a.q, x + 48), zeros()))
            out = g * (128 + ATTENTION_STATE) + 192 + j * 16
            store_f32(arena, out, add(add(a0, a1), add(a2, a3)))


@body
def attention_softmax(a, low, high, group, arena):
    """Scores become weights e^(s - m'), 0 for a key that is not seen; m and l move on."""
    for g in range(group):
        state = g * (a.head_dim + ATTENTION_STATE) + a.head_dim
        scores = mul(join_sums(arena, state + 64), splat(a.scale))
        scores = keep_lanes(scores, low, high, ATTENTION_UNSEEN)
        before, rescale = load_f32(arena, state), splat(1.0)
        m, top = before, join_max(scores)
        if not top <= get_f32(arena, state):  # else e^(m - m') is exactly 1; a NaN comes here
            m = largest(before, splat(top))
            rescale = exp(sub(before, m))
        weights = keep_lanes(exp(sub(scores, m)), low, high, 0.0)
        weight_sum = fma(load_f32(arena, state + 16), rescale, splat(join_sum(weights)))
        store_f32(arena, state, m)
        store_f32(arena, state + 16, weight_sum)
        store_f32(arena, state + 32, rescale)
        store_f32(arena, state + 48, weights)


@body
def attention_values(a, values, low, high, group, arena):
    """sums = sums * e^(m - m') + the seen keys' values, each times its weight."""
    for g in range(group):
        state = g * (a.head_dim + ATTENTION_STATE)
        rescale, weights = load_f32(arena, state + a.head_dim + 32), state + a.head_dim + 48
        for d in range(0, a.head_dim, 16):
            s = mul(load_f32(arena, state + d), rescale)
            for j in range(low, high):
                v = load_kv(a.v_pages, values + j * a.head_dim + d)
                s = fma(v, splat(get_f32(arena, weights + j)), s)
            store_f32(arena, state + d, s)


@body
def attention_values_16(a, values, group, arena):
    """`attention_values` of a block that is seen whole: up to three heads side by side."""
    step = a.head_dim + ATTENTION_STATE
    for d in range(0, a.head_dim // 64 * 64, 64):
        g = 0
        while g + 3 <= group:
            attention_values_three(a, values, d, g * step, step, arena)
            g += 3
        while g < group:
            attention_values_one(a, values, d, g * step, arena)
            g += 1
    for d in range(a.head_dim // 64 * 64, a.head_dim, 16):
        for g in range(group):
            state = g * step
            w = state + a.head_dim + 48
            s = mul(load_f32(arena, state + d), load_f32(arena, w - 16))
            for j in range(16):
                v = load_kv(a.v_pages, values + j * a.head_dim + d)
                s = fma(v, splat(get_f32(arena, w + j)), s)
            store_f32(arena, state + d, s)


@body
def attention_values_three(a, values, d, state, step, arena):
    """`attention_values_16` of 64 columns, from `d` on, of three heads, the first one's place in
    the arena at `state`: twelve sums stay in registers."""
    w0, row = state + a.head_dim + 48, a.head_dim
    w1, w2 = w0 + step, w0 + 2 * step
    r0, r1, r2 = load_f32(arena, w0 - 16), load_f32(arena, w1 - 16), load_f32(arena, w2 - 16)
    x, y, z = state + d, state + step + d, state + 2 * step + d
    a0, a1 = mul(load_f32(arena, x), r0), mul(load_f32(arena, x + 16), r0)
    a2, a3 = mul(load_f32(arena, x + 32), r0), mul(load_f32(arena, x + 48), r0)
    b0, b1 = mul(load_f32(arena, y), r1), mul(load_f32(arena, y + 16), r1)
    b2, b3 = mul(load_f32(arena, y + 32), r1), mul(load_f32(arena, y + 48), r1)
    c0, c1 = mul(load_f32(arena, z), r2), mul(load_f32(arena, z + 16), r2)
    c2, c3 = mul(load_f32(arena, z + 32), r2), mul(load_f32(arena, z + 48), r2)
    for j in range(16):
        v = values + j * row + d
        v0, v1 = load_kv(a.v_pages, v), load_kv(a.v_pages, v + 16)
        v2, v3 = load_kv(a.v_pages, v + 32), load_kv(a.v_pages, v + 48)
        w = splat(get_f32(arena, w0 + j))
        a0, a1, a2, a3 = fma(v0, w, a0), fma(v1, w, a1), fma(v2, w, a2), fma(v3, w, a3)
        w = splat(get_f32(arena, w1 + j))
        b0, b1, b2, b3 = fma(v0, w, b0), fma(v1, w, b1), fma(v2, w, b2), fma(v3, w, b3)
        w = splat(get_f32(arena, w2 + j))
        c0, c1, c2, c3 = fma(v0, w, c0), fma(v1, w, c1), fma(v2, w, c2), fma(v3, w, c3)
    lanes_put(arena, x, a0, a1, a2, a3)
    lanes_put(arena, y, b0, b1, b2, b3)
    lanes_put(arena, z, c0, c1, c2, c3)


@body
def attention_values_one(a, values, d, state, arena):
    """`attention_values_three` of one head."""
    w0, x = state + a.head_dim + 48, state + d
    r0 = load_f32(arena, w0 - 16)
    a0, a1 = mul(load_f32(arena, x), r0), mul(load_f32(arena, x + 16), r0)
    a2, a3 = mul(load_f32(arena, x + 32), r0), mul(load_f32(arena, x + 48), r0)
    for j in range(16):
        v = values + j * a.head_dim + d
        v0, v1 = load_kv(a.v_pages, v), load_kv(a.v_pages, v + 16)
        v2, v3 = load_kv(a.v_pages, v + 32), load_kv(a.v_pages, v + 48)
        w = splat(get_f32(arena, w0 + j))
        a0, a1, a2, a3 = fma(v0, w, a0), fma(v1, w, a1), fma(v2, w, a2), fma(v3, w, a3)
    lanes_put(arena, x, a0, a1, a2, a3)


@body
def attention_divide(a, y, group, arena):
    """Writes each head's sums over l; `y` is where the first head's columns begin."""
    for g in range(group):
        state = g * (a.head_dim + ATTENTION_STATE)
        attention_quotient(a, state, state + a.head_dim + 16, y + g * a.head_dim, arena)


@body
def attention_quotient(a, sums, weight_sum, y, arena):
    """Writes a head's sums over l at element `y`."""
    divisor = splat(get_f32(arena, weight_sum))
    for d in range(0, a.head_dim, 16):
        store_f32(a.y, y + d, div(add(load_f32(arena, sums + d), zeros()), divisor))


@body
def attention_end(a, row, group, arena):
    """Writes each head's sums, m and l; `row` is the first head's row of partial."""
    for g in range(group):
        state = g * (a.head_dim + ATTENTION_STATE)
        m = state + a.head_dim
        attention_partial(a, state, m, m + 16, row + g, arena)


@body
def attention_partial(a, sums, m, weight_sum, row, arena):
    """Writes a head's sums, m and l in its row of partial."""
    out = row * (a.head_dim + 16)
    for d in range(0, a.head_dim, 16):
        store_f32(a.partial, out + d, load_f32(arena, sums + d))
    set_f32(a.partial, out + a.head_dim, get_f32(arena, m))
    set_f32(a.partial, out + a.head_dim + 1, get_f32(arena, weight_sum))
