"""Attention of sixteen queries side by side, one in a lane, in the arithmetic order of one alone.

What lies in memory, in float32, is [16 keys, head_dim] of keys and of values, and of the queries
[head_dim, 16 lanes]: a key's element meets sixteen queries at once, no lanes are joined, and each
step of the softmax is taken for all sixteen. Which key which query sees, and where all of this
lies, is the caller's business.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mkport.machines.cpu.vector import (
    _F32,
    _I32,
    _IVEC,
    _VEC,
    LANES,
    _call,
    _element,
    _splat,
    body,
    exp,
    f32x16,
    fma,
    get_f32,
    load_f32,
    mul,
    splat,
    store_f32,
    sub,
)

LANES_PAIR = 2  # keys scored together: they share the queries that are loaded


def _stored(builder, address, index, place):
    """Vector number `place` from element `index` on."""
    at = builder.add(index, ir.Constant(ir.IntType(64), place * LANES))
    loaded = builder.load(_element(builder, address, at, _F32, _VEC))
    loaded.align = 4
    return loaded


def _spread(builder, scalar):
    one = builder.insert_element(ir.Constant(_VEC, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(_IVEC, [0] * LANES))


def _fold_stored(name, operation, doc):
    """Joins 16 stored vectors lane by lane: i with i + 8, then i + 4, i + 2, i + 1."""

    def codegen(context, builder, sig, args):
        vectors = [_stored(builder, *args, place) for place in range(LANES)]
        while len(vectors) > 1:
            half = len(vectors) // 2
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [operation(builder, low, high) for low, high in pairs]
        return vectors[0]

    def typed(typingctx, address, index):
        return f32x16(types.int64, types.int64), codegen

    typed.__name__, typed.__doc__ = name, doc
    return intrinsic(typed)


sum_stored = _fold_stored(
    "sum_stored", lambda b, x, y: b.fadd(x, y), "`join_sum` of 16 keys, for each lane."
)
max_stored = _fold_stored(
    "max_stored",
    lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y),
    "`join_max` of 16 keys, for each lane.",
)


def _scores(name, columns):
    """A primitive: out [2, 16 lanes] = two keys [2, columns] times `queries` [columns, 16 lanes].

    All are elements of `arena`. Lane l of a dot product in dot.py is here a column's own vector.
    """

    def codegen(context, builder, sig, args):
        arena, queries, keys, out = args

        def column(lane):
            chains = [[_splat(0.0)] * 4 for _ in range(LANES_PAIR)]
            for part in range(columns // LANES):
                q = _stored(builder, arena, queries, part * LANES + lane)
                for key, sums in enumerate(chains):
                    at = key * columns + part * LANES + lane
                    place = builder.add(keys, ir.Constant(ir.IntType(64), at))
                    k = builder.load(_element(builder, arena, place, _F32, _F32))
                    factors = [_spread(builder, k), q, sums[part % 4]]
                    sums[part % 4] = _call(builder, "llvm.fma.v16f32", _VEC, factors)
            return [builder.fadd(builder.fadd(a, b), builder.fadd(c, d)) for a, b, c, d in chains]

        def joined(lane, step):  # depth first, so that few sums wait in registers
            if step == LANES:
                return column(lane)
            halves = zip(joined(lane, 2 * step), joined(lane + step, 2 * step), strict=True)
            return [builder.fadd(low, high) for low, high in halves]

        for key, scores in enumerate(joined(0, 1)):
            at = builder.add(out, ir.Constant(ir.IntType(64), key * LANES))
            builder.store(scores, _element(builder, arena, at, _F32, _VEC)).align = 4
        return context.get_dummy_value()

    def typed(typingctx, arena, queries, keys, out):
        return types.void(types.int64, types.int64, types.int64, types.int64), codegen

    typed.__name__, typed.__doc__ = name, f"Two keys of {columns} columns times 16 queries."
    return intrinsic(typed)


scores_64, scores_128 = _scores("scores_64", 64), _scores("scores_128", 128)


@intrinsic
def keep_between(typingctx, value, place, low, high, fill):
    """Lanes of `value` in which low <= place < high; the others are the float32 `fill`."""

    def codegen(context, builder, sig, args):
        value, place, low, high, fill = args
        here = _spread(builder, place)
        inside = builder.and_(
            builder.fcmp_ordered("<=", low, here), builder.fcmp_ordered("<", here, high)
        )
        return builder.select(inside, value, _spread(builder, fill))

    return f32x16(f32x16, types.float32, f32x16, f32x16, types.float32), codegen


@intrinsic
def at_most(typingctx, x, y, value, other):
    """`value` in lanes where x <= y, else `other`."""

    def codegen(context, builder, sig, args):
        x, y, value, other = args
        return builder.select(builder.fcmp_ordered("<=", x, y), value, other)

    return f32x16(f32x16, f32x16, f32x16, f32x16), codegen


@body
def lanes_scores(arena, queries, keys, head_dim, out):
    """out [16 keys, 16 lanes] = the keys' products with the queries; head_dim is 64 or 128."""
    for j in range(0, 16, 2):
        if head_dim == 64:
            scores_64(arena, queries, keys + j * 64, out + j * 16)
        else:
            scores_128(arena, queries, keys + j * 128, out + j * 16)


@body
def lanes_softmax(arena, scores, scale, whole, first, m_at, unseen):
    """`scores` [16 keys, 16 lanes] become weights e^(s - m'), 0 for a key that is not seen.

    From `m_at` on lie vectors m and l, which move on, e^(m - m'), and which keys, from low to high,
    a lane sees; `first` is the block's first key. Nobody looks at these if all are seen (`whole`).
    """
    low, high = load_f32(arena, m_at + 48), load_f32(arena, m_at + 64)
    for j in range(16):
        s = mul(load_f32(arena, scores + j * 16), splat(scale))
        if not whole:
            s = keep_between(s, np.float32(first + j), low, high, unseen)
        store_f32(arena, scores + j * 16, s)
    before, top = load_f32(arena, m_at), max_stored(arena, scores)
    m = at_most(top, before, before, top)  # a NaN goes on
    rescale = at_most(top, before, splat(1.0), exp(sub(before, m)))
    for j in range(16):
        w = exp(sub(load_f32(arena, scores + j * 16), m))
        if not whole:
            w = keep_between(w, np.float32(first + j), low, high, 0.0)
        store_f32(arena, scores + j * 16, w)
    store_f32(arena, m_at, m)
    weight_sum = fma(load_f32(arena, m_at + 16), rescale, sum_stored(arena, scores))
    store_f32(arena, m_at + 16, weight_sum)
    store_f32(arena, m_at + 32, rescale)


@body
def lanes_values(arena, sums, weights, values, head_dim, m_at):
    """sums [16 lanes, head_dim] = sums * e^(m - m') + the values, each times its weight."""
    for i in range(0, 16, 4):
        for d in range(0, head_dim, 64):
            at, v = sums + i * head_dim + d, values + d
            lanes_values_four(arena, at, weights + i, v, head_dim, m_at + 32 + i)


@body
def lanes_values_four(arena, x, weights, values, head_dim, rescale):
    """64 columns of four queries, the first one's sums at `x`: sixteen sums stay in registers."""
    y, z, u = x + head_dim, x + 2 * head_dim, x + 3 * head_dim
    a0, a1, a2, a3 = lanes_rescaled(arena, x, rescale)
    b0, b1, b2, b3 = lanes_rescaled(arena, y, rescale + 1)
    c0, c1, c2, c3 = lanes_rescaled(arena, z, rescale + 2)
    d0, d1, d2, d3 = lanes_rescaled(arena, u, rescale + 3)
    for j in range(16):
        v, at = values + j * head_dim, weights + j * 16
        v0, v1 = load_f32(arena, v), load_f32(arena, v + 16)
        v2, v3 = load_f32(arena, v + 32), load_f32(arena, v + 48)
        w = splat(get_f32(arena, at))
        a0, a1, a2, a3 = fma(v0, w, a0), fma(v1, w, a1), fma(v2, w, a2), fma(v3, w, a3)
        w = splat(get_f32(arena, at + 1))
        b0, b1, b2, b3 = fma(v0, w, b0), fma(v1, w, b1), fma(v2, w, b2), fma(v3, w, b3)
        w = splat(get_f32(arena, at + 2))
        c0, c1, c2, c3 = fma(v0, w, c0), fma(v1, w, c1), fma(v2, w, c2), fma(v3, w, c3)
        w = splat(get_f32(arena, at + 3))
        d0, d1, d2, d3 = fma(v0, w, d0), fma(v1, w, d1), fma(v2, w, d2), fma(v3, w, d3)
    lanes_put(arena, x, a0, a1, a2, a3)
    lanes_put(arena, y, b0, b1, b2, b3)
    lanes_put(arena, z, c0, c1, c2, c3)
    lanes_put(arena, u, d0, d1, d2, d3)


@body
def lanes_rescaled(arena, at, rescale):
    """64 columns times the element `rescale`."""
    r = splat(get_f32(arena, rescale))
    a0, a1 = mul(load_f32(arena, at), r), mul(load_f32(arena, at + 16), r)
    return a0, a1, mul(load_f32(arena, at + 32), r), mul(load_f32(arena, at + 48), r)


@body
def lanes_put(arena, at, a, b, c, d):
    """Stores 64 columns."""
    store_f32(arena, at, a)
    store_f32(arena, at + 16, b)
    store_f32(arena, at + 32, c)
    store_f32(arena, at + 48, d)


@body
def lanes_edge(arena, sums, weights, values, head_dim, m_at, first):
    """`lanes_values` of a block of which the lanes see different keys; the others are not touched,
    since what nobody wrote may be no number."""
    for i in range(16):
        low = max(int(get_f32(arena, m_at + 48 + i)) - first, 0)
        high = min(int(get_f32(arena, m_at + 64 + i)) - first, 16)
        r = splat(get_f32(arena, m_at + 32 + i))
        for d in range(0, head_dim, 16):
            s = mul(load_f32(arena, sums + i * head_dim + d), r)
            for j in range(low, high):
                v = load_f32(arena, values + j * head_dim + d)
                s = fma(v, splat(get_f32(arena, weights + j * 16 + i)), s)
            store_f32(arena, sums + i * head_dim + d, s)
