"""The topk body: a token's experts, best first, and their weights; and the step's pairs by expert,
if they are asked for."""

import numpy as np

from mkport.machines.cpu.pairs import group_pairs
from mkport.machines.cpu.vector import (
    add,
    body,
    div,
    exp,
    get_f32,
    get_i32,
    join_sum,
    keep_lanes,
    load_f32,
    set_f32,
    set_i32,
    splat,
    store_f32,
    sub,
    zeros,
)


@body
def topk(a, tile, arena):
    """ids and weights from the logits z: those of token `tile`, or, if there are slots, of all
    tokens, whose pairs are then grouped."""
    live = get_i32(a.count, 0)
    if a.slots == 0:
        if tile < live:
            topk_token(a, tile, arena)
        return
    for token in range(live):
        topk_token(a, token, arena)
    group_pairs(a.ids, live * a.k, a.experts, 0, a.slots, a.slot_count, a.pairs, arena)


@body
def topk_token(a, token, arena):
    """ids[token] and weights[token] from the logits z[token]."""
    z, out = token * a.experts, token * a.k
    finite = True
    for e in range(a.experts):
        value = get_f32(a.z, z + e)
        finite &= value - value == 0
    if not finite:
        for c in range(a.k):
            set_i32(a.ids, out + c, np.int32(-1))
            set_f32(a.weights, out + c, np.float32(np.nan))
        return
    topk_choose(a, z, out)
    total = topk_scores(a, z, get_f32(a.z, z + get_i32(a.ids, out)), arena)
    chosen = np.float32(0)
    for c in range(a.k):
        weight = get_f32(arena, get_i32(a.ids, out + c)) / total
        set_f32(a.weights, out + c, weight)
        chosen += weight
    for c in range(a.k):
        weight = get_f32(a.weights, out + c)
        if a.renormalise != 0:
            weight /= chosen
        set_f32(a.weights, out + c, weight * a.scale)


@body
def topk_choose(a, z, out):
    """Keeps the best k so far sorted; a later expert moves ahead only of smaller logits."""
    for e in range(a.experts):
        value = get_f32(a.z, z + e)
        place = min(e, a.k)
        while place > 0 and value > get_f32(a.z, z + get_i32(a.ids, out + place - 1)):
            if place < a.k:
                set_i32(a.ids, out + place, get_i32(a.ids, out + place - 1))
            place -= 1
        if place < a.k:
            set_i32(a.ids, out + place, np.int32(e))


@body
def topk_scores(a, z, highest, arena):
    """Every expert's score into the arena; returns what to divide it by."""
    if a.softmax == 0:
        for e in range(0, a.experts, 16):
            score = div(splat(1.0), add(splat(1.0), exp(sub(zeros(), load_f32(a.z, z + e)))))
            store_f32(arena, e, score)
        return np.float32(1)
    total = zeros()
    for e in range(0, a.experts, 16):
        score = exp(sub(load_f32(a.z, z + e), splat(highest)))
        store_f32(arena, e, score)
        total = add(total, keep_lanes(score, 0, a.experts - e, 0.0))
    return join_sum(total)
