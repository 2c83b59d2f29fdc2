"""The sample_join body: one row. Of a row that is cut, the token that `sample` found stays if it is
among those left, which is so nearly always; if not, the k-th largest is looked for, or, with top_p,
only larger ones can be, and the best of these is next. What lies in a group whose largest value is
too small is never looked at."""

import numpy as np

from mkport.machines.cpu.draw import (
    DRAW_COLUMNS,
    DRAW_COUNTS,
    DRAW_CUTS,
    DRAW_FLAGS,
    DRAW_GIVEN,
    DRAW_MIN_P,
    DRAW_NONE,
    DRAW_ONE,
    DRAW_REPEATS,
    DRAW_TOLD,
    DRAW_TOP_K,
    DRAW_TOP_P,
    DRAW_WORDS,
    draw_cut,
    draw_exp,
    draw_log,
    draw_noise,
    draw_place,
    draw_weight,
    draw_words,
)
from mkport.machines.cpu.vector import body, get_f32, get_i32, set_f32, set_i32


@body
def sample_join(a, tile, arena):
    """y[tile] = the row's token, counted where it has a penalty; what it is told of the others."""
    if tile >= get_i32(a.count, 0):
        return
    parts, way = (a.n + 4095) // 4096, tile * DRAW_WORDS
    row = tile * parts
    first = row
    for part in range(row, row + parts):
        if get_i32(a.at, part) < 0:
            first = part
            break
        if get_f32(a.best, part) > get_f32(a.best, first):
            first = part
    token = np.int64(get_i32(a.at, first))
    if token >= 0:
        if get_f32(a.best, first) == np.float32(-np.inf):
            token = np.int64(-2)
        elif draw_cut(a.sampling, way):
            token = sample_join_cut(a, tile, token, arena)
        given = get_i32(a.sampling, way + DRAW_GIVEN)
        if given > 0:
            token = np.int64(given - 1)
    set_i32(a.y, tile, np.int32(token))
    if token < 0:
        return
    if get_i32(a.sampling, way + DRAW_FLAGS) & (DRAW_REPEATS | DRAW_COUNTS):
        padded = (a.n + 127) // DRAW_COLUMNS * DRAW_COLUMNS
        at = get_i32(a.rows, get_i32(a.index, tile) * 2) * padded + token
        set_i32(a.tally, at, np.int32(get_i32(a.tally, at) + 1))
    if get_i32(a.sampling, way + DRAW_TOLD) > 0:
        sample_join_tell(a, tile, token, arena)


@body
def sample_join_cut(a, row, token, arena):
    """The best of the tokens that min_p, top_k and top_p leave; `token` is the best of all."""
    way, groups = row * DRAW_WORDS, (a.n + 127) // DRAW_COLUMNS
    peaks, at, n = row * 2 * groups, row * groups * DRAW_COLUMNS, groups * DRAW_COLUMNS
    k = np.int64(get_i32(a.sampling, way + DRAW_TOP_K))
    share = np.uint64(np.uint32(get_i32(a.sampling, way + DRAW_TOP_P)))
    top = sample_join_largest(a, peaks, groups)
    low = DRAW_NONE + np.uint64(1)  # of what is left
    floored = (get_i32(a.sampling, way + DRAW_FLAGS) & DRAW_CUTS) != 0
    if floored:
        bound = draw_place(top + get_f32(a.sampling, way + DRAW_MIN_P), 0xFFFFFFFF)
        low = max(low, bound)
    if k > 0 and share > 0:
        low = sample_join_kth(a.scores, at, n, a.peaks, peaks, groups, k, low, arena)
    needed = np.uint64(0)
    if share > 0:
        if k == 0 and not floored:
            weight = sample_join_total(a, peaks, groups, top)
        else:
            weight = sample_join_above(a, row, low, top)[1]
        whole = np.uint64(weight)
        rest = whole & np.uint64(0xFFFFFFFF)
        needed = (whole >> np.uint64(32)) * share + ((rest * share) >> np.uint64(32))
        needed = max(needed, np.uint64(1))
    floor = low
    while True:
        place = draw_place(get_f32(a.scores, at + token), token)
        if place >= low:
            if k == 0 and share == 0:
                return token
            low = place + np.uint64(1)
            count, weight = sample_join_above(a, row, low, top)
            if (k == 0 or count < k) and (share == 0 or np.uint64(weight) < needed):
                return token
        if share == 0:
            if k > 0:
                low = sample_join_kth(a.scores, at, n, a.peaks, peaks, groups, k, floor, arena)
            return sample_join_race(a, row, low)
        token = sample_join_race(a, row, low)


@body
def sample_join_largest(a, peaks, groups):
    """The largest of a row's values, which are not all -infinity."""
    top = get_f32(a.peaks, peaks)
    for group in range(groups):
        top = max(top, get_f32(a.peaks, peaks + group))
    return top


@body
def sample_join_total(a, peaks, groups, top):
    """The weight of all of a row's values."""
    total = np.int64(0)
    for group in range(peaks, peaks + groups):
        part = get_f32(a.sums, group) * draw_exp(get_f32(a.peaks, group) - top)
        total += np.int64(part * np.float32(DRAW_ONE))
    return total


@body
def sample_join_above(a, row, low, top):
    """How many scores have a place from `low` on, and their weight."""
    groups = (a.n + 127) // DRAW_COLUMNS
    count, weight = np.int64(0), np.int64(0)
    for group in range(groups):
        first = group * DRAW_COLUMNS
        if draw_place(get_f32(a.peaks, row * 2 * groups + group), first) < low:
            continue
        for n in range(first, first + DRAW_COLUMNS):
            score = get_f32(a.scores, row * groups * DRAW_COLUMNS + n)
            if draw_place(score, n) >= low:
                count += 1
                weight += draw_weight(score, top)
    return count, weight


@body
def sample_join_race(a, row, low):
    """The best, with its noise, of the scores whose place is from `low` on."""
    groups, way = (a.n + 127) // DRAW_COLUMNS, row * DRAW_WORDS
    position = get_i32(a.rows, get_i32(a.index, row) * 2 + 1)
    value, index = np.float32(-np.inf), np.int64(-1)
    for group in range(groups):
        first = group * DRAW_COLUMNS
        if draw_place(get_f32(a.peaks, row * 2 * groups + group), first) < low:
            continue
        for n in range(first, first + DRAW_COLUMNS):
            score = get_f32(a.scores, row * groups * DRAW_COLUMNS + n)
            if draw_place(score, n) < low:
                continue
            w0, w1, w2, w3 = draw_words(a.sampling, way, n // 4, position)
            lane = n % 4
            score += draw_noise(w0 if lane == 0 else w1 if lane == 1 else w2 if lane == 2 else w3)
            if score > value or index < 0:
                value, index = score, np.int64(n)
    return index


@body
def sample_join_kth(values, at, n, tops, peaks, groups, k, low, arena):
    """A place that exactly the k largest of a row's places from `low` on reach, or `low` itself if
    they are not more. No value of a group is above its peak, so k peaks bound what is looked for.
    """
    high = draw_place(np.float32(np.inf), 0)
    if k <= groups:
        bound = sample_join_narrow(tops, peaks, groups, 0, 0, k, low, high, arena)
        low = max(low, (bound >> np.uint64(32)) << np.uint64(32))
    return sample_join_narrow(values, at, n, tops, peaks, k, low, high, arena)


@body
def sample_join_narrow(values, at, n, tops, peaks, k, low, high, arena):
    """The k-th largest place from `low` to `high`, or a lower one that nothing lies between."""
    one, above = np.uint64(1), np.int64(0)
    while True:
        shift = np.uint64(0)
        while ((high - low) >> shift) >= np.uint64(256):
            shift += one
        for bucket in range(256):
            set_i32(arena, bucket, np.int32(0))
        for first in range(0, n, DRAW_COLUMNS):
            if tops != 0 and draw_place(get_f32(tops, peaks + first // DRAW_COLUMNS), first) < low:
                continue
            for i in range(first, min(first + DRAW_COLUMNS, n)):
                place = draw_place(get_f32(values, at + i), i)
                if low <= place and place <= high:
                    bucket = np.int64((place - low) >> shift)
                    set_i32(arena, bucket, np.int32(get_i32(arena, bucket) + 1))
        bucket = np.int64(255)
        while bucket >= 0 and above + get_i32(arena, bucket) < k:
            above += get_i32(arena, bucket)
            bucket -= 1
        if bucket < 0:
            return low
        low += np.uint64(bucket) << shift
        found = np.int64(get_i32(arena, bucket))
        if found == 1 or above + found == k:
            return low
        high = min(high, low + ((one << shift) - one))


@body
def sample_join_tell(a, row, token, arena):
    """The log probabilities of a row's token and of the likeliest, as the logits have them."""
    way, groups = row * DRAW_WORDS, (a.n + 127) // DRAW_COLUMNS
    peaks, at = (row * 2 + 1) * groups, row * a.n
    top = sample_join_largest(a, peaks, groups)
    weight = np.float32(sample_join_total(a, peaks, groups, top)) * np.float32(1 / DRAW_ONE)
    base, to = draw_log(weight), row * 21
    set_f32(a.logprobs, to, (get_f32(a.x, at + token) - top) - base)
    rivals = min(np.int64(get_i32(a.sampling, way + DRAW_TOLD) - 1), a.n)
    if rivals == 0:
        return
    low = DRAW_NONE + np.uint64(1)
    low = sample_join_kth(a.x, at, a.n, a.peaks, peaks, groups, rivals, low, arena)
    count = np.int64(0)
    for first in range(0, a.n, DRAW_COLUMNS):
        if draw_place(get_f32(a.peaks, peaks + first // DRAW_COLUMNS), first) < low:
            continue
        for n in range(first, min(first + DRAW_COLUMNS, a.n)):
            x = get_f32(a.x, at + n)
            if draw_place(x, n) < low:
                continue
            place = count  # the larger ones stand before it, and those of equals with lower indices
            while place > 0 and get_f32(a.x, at + get_i32(a.ids, row * 20 + place - 1)) < x:
                set_f32(a.logprobs, to + place + 1, get_f32(a.logprobs, to + place))
                set_i32(a.ids, row * 20 + place, get_i32(a.ids, row * 20 + place - 1))
                place -= 1
            set_f32(a.logprobs, to + place + 1, (x - top) - base)
            set_i32(a.ids, row * 20 + place, np.int32(n))
            count += 1
