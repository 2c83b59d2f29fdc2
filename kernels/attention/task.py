"""The attention body: one split of one token's keys, for the query heads of one kv head."""

from mkport.machines.cpu.vector import (
    add,
    body,
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
    zeros,
)

ATTENTION_SPLIT = 256  # keys
ATTENTION_UNSEEN = float("-inf")  # the score of a key that the token does not see


@body
def attention(a, tile, arena):
    """partial[token, split, heads of a kv head], over the keys that the token sees in the split."""
    kv_head, split = tile % a.kv_heads, tile // a.kv_heads % a.splits
    token = tile // (a.kv_heads * a.splits)
    if token >= get_i32(a.count, 0):
        return
    sequence, position = get_i32(a.rows, 2 * token), get_i32(a.rows, 2 * token + 1)
    first, end = split * ATTENTION_SPLIT, min((split + 1) * ATTENTION_SPLIT, position + 1)
    if a.window > 0:
        first = max(first, position - a.window + 1)
    if first >= end:
        return
    group = a.heads // a.kv_heads
    size = a.head_dim + 32  # a head's state in the arena: its sums, a vector of m, one of l
    for g in range(group):
        attention_begin(arena, 272 + g * size, a.head_dim)
    q = (token * a.heads + kv_head * group) * a.head_dim
    for block in range(first - first % 16, end, 16):
        page = get_i32(a.page_table, sequence * a.pages_per_sequence + block // a.page)
        keys = ((page * a.kv_heads + kv_head) * a.page + block % a.page) * a.head_dim
        low, high = max(first - block, 0), min(end - block, 16)
        for g in range(group):
            state = 272 + g * size
            attention_scores(a, q + g * a.head_dim, keys, arena)
            rescale = attention_softmax(a, low, high, arena, state + a.head_dim)
            attention_values(a, keys, low, high, arena, state, rescale)
    out = ((token * a.splits + split) * a.heads + kv_head * group) * (a.head_dim + 16)
    for g in range(group):
        attention_end(a, out + g * (a.head_dim + 16), arena, 272 + g * size)


@body
def attention_begin(arena, state, head_dim):
    """No key seen yet: sums 0, m -inf, l 0."""
    for d in range(0, head_dim, 16):
        store_f32(arena, state + d, zeros())
    store_f32(arena, state + head_dim, splat(ATTENTION_UNSEEN))
    store_f32(arena, state + head_dim + 16, zeros())


@body
def attention_scores(a, q, keys, arena):
    """Sixteen keys' products with a query, before their lanes are joined, into arena [16, 16]."""
    for j in range(16):
        k = keys + j * a.head_dim
        a0, a1, a2, a3 = zeros(), zeros(), zeros(), zeros()
        whole = a.head_dim - a.head_dim % 64
        for d in range(0, whole, 64):
            a0 = fma(load_kv(a.k_pages, k + d), load_f32(a.q, q + d), a0)
            a1 = fma(load_kv(a.k_pages, k + d + 16), load_f32(a.q, q + d + 16), a1)
            a2 = fma(load_kv(a.k_pages, k + d + 32), load_f32(a.q, q + d + 32), a2)
            a3 = fma(load_kv(a.k_pages, k + d + 48), load_f32(a.q, q + d + 48), a3)
        if whole < a.head_dim:
            a0 = fma(load_kv(a.k_pages, k + whole), load_f32(a.q, q + whole), a0)
        if whole + 16 < a.head_dim:
            a1 = fma(load_kv(a.k_pages, k + whole + 16), load_f32(a.q, q + whole + 16), a1)
        if whole + 32 < a.head_dim:
            a2 = fma(load_kv(a.k_pages, k + whole + 32), load_f32(a.q, q + whole + 32), a2)
        store_f32(arena, j * 16, add(add(a0, a1), add(a2, a3)))


@body
def attention_softmax(a, low, high, arena, state):
    """Sixteen scores become e^(s - m) at arena [256:272]; m and l move on; returns e^(m - m')."""
    scores = mul(join_sums(arena, 0), splat(a.scale))
    scores = keep_lanes(scores, low, high, ATTENTION_UNSEEN)
    before = load_f32(arena, state)
    m = largest(before, splat(join_max(scores)))
    rescale = exp(sub(before, m))
    weights = keep_lanes(exp(sub(scores, m)), low, high, 0.0)
    store_f32(arena, 256, weights)
    store_f32(arena, state, m)
    l = load_f32(arena, state + 16)
    store_f32(arena, state + 16, fma(l, rescale, splat(join_sum(weights))))
    return rescale


@body
def attention_values(a, values, low, high, arena, state, rescale):
    """sums = sums * rescale + the seen keys' values, each times its weight."""
    whole = a.head_dim - a.head_dim % 64
    for d in range(0, whole, 64):
        s0 = mul(load_f32(arena, state + d), rescale)
        s1 = mul(load_f32(arena, state + d + 16), rescale)
        s2 = mul(load_f32(arena, state + d + 32), rescale)
        s3 = mul(load_f32(arena, state + d + 48), rescale)
        for j in range(low, high):
            v = values + j * a.head_dim + d
            weight = splat(get_f32(arena, 256 + j))
            s0 = fma(load_kv(a.v_pages, v), weight, s0)
            s1 = fma(load_kv(a.v_pages, v + 16), weight, s1)
            s2 = fma(load_kv(a.v_pages, v + 32), weight, s2)
            s3 = fma(load_kv(a.v_pages, v + 48), weight, s3)
        store_f32(arena, state + d, s0)
        store_f32(arena, state + d + 16, s1)
        store_f32(arena, state + d + 32, s2)
        store_f32(arena, state + d + 48, s3)
    for d in range(whole, a.head_dim, 16):
        s = mul(load_f32(arena, state + d), rescale)
        for j in range(low, high):
            v = values + j * a.head_dim + d
            s = fma(load_kv(a.v_pages, v), splat(get_f32(arena, 256 + j)), s)
        store_f32(arena, state + d, s)


@body
def attention_end(a, out, arena, state):
    """Writes a head's sums, m and l."""
    for d in range(0, a.head_dim, 16):
        store_f32(a.partial, out + d, load_f32(arena, state + d))
    set_f32(a.partial, out + a.head_dim, get_f32(arena, state + a.head_dim))
    set_f32(a.partial, out + a.head_dim + 1, get_f32(arena, state + a.head_dim + 16))
