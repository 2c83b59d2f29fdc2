"""The sample body: one block of one row. Greedy rows go 16 columns at a time; in drawn ones most
columns are out of the running before their noise is worked out."""

import numpy as np

from mkport.machines.cpu.draw import (
    DRAW_BIASED,
    DRAW_COLUMNS,
    DRAW_COUNTS,
    DRAW_EARLY,
    DRAW_EDITS,
    DRAW_END,
    DRAW_FLAGS,
    DRAW_FREQUENCY,
    DRAW_MASKED,
    DRAW_PRESENCE,
    DRAW_PROMPT,
    DRAW_REPEATS,
    DRAW_REPETITION,
    DRAW_TEMPERATURE,
    DRAW_TOLD,
    DRAW_WORDS,
    draw_cut,
    draw_noise,
    draw_words,
)
from mkport.machines.cpu.vector import (
    add,
    body,
    div,
    exp,
    get_f32,
    get_i32,
    join_max,
    join_sum,
    keep_lanes,
    largest,
    load_f32,
    set_f32,
    set_i32,
    splat,
    store_f32,
    sub,
    zeros,
)


@body
def sample(a, tile, arena):
    """best and at of the tile's block of columns."""
    blocks = (a.n + 4095) // 4096
    row, first = tile // blocks, tile % blocks * 4096
    if row >= get_i32(a.count, 0):
        return
    values, at, end = a.x, row * a.n, min(first + 4096, a.n)
    groups, way = (a.n + 127) // DRAW_COLUMNS, row * DRAW_WORDS
    temperature = get_f32(a.sampling, way + DRAW_TEMPERATURE)
    drawn, cut = temperature > 0, draw_cut(a.sampling, way)
    top, strange = sample_top(values, at, first, end)
    if get_i32(a.sampling, way + DRAW_TOLD) != 0:
        sample_peaks(a, values, at, (row * 2 + 1) * groups, first, end)
    if cut or get_i32(a.sampling, way + DRAW_FLAGS) & DRAW_EDITS:
        values, at = a.scores, row * groups * DRAW_COLUMNS
        sample_scores(a, row, first, end)
        temperature = np.float32(1)
        if cut:
            sample_peaks(a, values, at, row * 2 * groups, first, end)
        if not drawn:
            top, _ = sample_top(values, at, first, end)
    if strange:
        sample_found(a, tile, np.float32(np.nan), -1)
    elif drawn:
        sample_draw(a, tile, row, values, at, temperature, first, end)
    else:
        found = first
        while get_f32(values, at + found) != top:
            found += 1
        sample_found(a, tile, top, found)


@body
def sample_found(a, tile, value, index):
    """A block's best; a value that is infinite counts as one that is not finite."""
    finite = value < np.float32(np.inf)
    set_f32(a.best, tile, value if finite else np.float32(np.nan))
    set_i32(a.at, tile, np.int32(index if finite else -1))


@body
def sample_top(address, x, first, end):
    """The largest of columns first to end - 1, and whether one is not finite."""
    top = largest(load_f32(address, x + first), load_f32(address, x + first))
    top = keep_lanes(top, 0, end - first, get_f32(address, x + first))
    strange = zeros()  # v - v is zero, or a NaN where v is not finite
    for n in range(first, end, 16):
        v = keep_lanes(load_f32(address, x + n), 0, end - n, get_f32(address, x + first))
        top = largest(v, top)
        strange = add(strange, sub(v, v))
    return join_max(top), join_sum(strange) != 0


@body
def sample_scores(a, row, first, end):
    """Writes the scores of columns first to end - 1, and -infinity up to the end of their group."""
    way, x = row * DRAW_WORDS, row * a.n
    padded = (a.n + 127) // DRAW_COLUMNS * DRAW_COLUMNS
    to, flags = row * padded, get_i32(a.sampling, way + DRAW_FLAGS)
    temperature = get_f32(a.sampling, way + DRAW_TEMPERATURE)
    if flags & DRAW_EDITS:
        sequence = get_i32(a.rows, get_i32(a.index, row) * 2)
        for n in range(first, end):
            place = sequence * padded + n
            score = sample_edited(a, way, flags, get_f32(a.x, x + n), get_i32(a.tally, place))
            if flags & DRAW_BIASED:
                score += get_f32(a.bias, place)
            if flags & DRAW_EARLY and get_i32(a.tally, place) & DRAW_END:
                score = np.float32(-np.inf)
            if flags & DRAW_MASKED and not (get_i32(a.mask, place // 32) >> (n % 32)) & 1:
                score = np.float32(-np.inf)
            set_f32(a.scores, to + n, score / temperature if temperature > 0 else score)
    else:
        for n in range(first, end, 16):
            store_f32(a.scores, to + n, div(load_f32(a.x, x + n), splat(temperature)))
    for n in range(end, min(first + 4096, padded)):
        set_f32(a.scores, to + n, np.float32(-np.inf))


@body
def sample_edited(a, way, flags, x, tally):
    """A logit after the penalties that its token's tally brings it."""
    times = tally & (DRAW_PROMPT - 1)
    if flags & DRAW_REPEATS and (times or tally & DRAW_PROMPT):
        penalty = get_f32(a.sampling, way + DRAW_REPETITION)
        x = x / penalty if x > 0 else x * penalty
    if flags & DRAW_COUNTS and times:
        frequency = get_f32(a.sampling, way + DRAW_FREQUENCY)
        x -= np.float32(times) * frequency + get_f32(a.sampling, way + DRAW_PRESENCE)
    return x


@body
def sample_peaks(a, address, at, to, first, end):
    """Each group's largest value, and the sum of e^(value - largest), from place `to` on."""
    none = np.float32(-np.inf)
    for group in range(first // DRAW_COLUMNS, (end + 127) // DRAW_COLUMNS):
        n = group * DRAW_COLUMNS
        top = splat(none)
        for i in range(0, min(DRAW_COLUMNS, end - n), 16):
            top = largest(keep_lanes(load_f32(address, at + n + i), 0, end - n - i, none), top)
        peak = join_max(top) + np.float32(0)
        set_f32(a.peaks, to + group, peak)
        if peak == none:
            set_f32(a.sums, to + group, np.float32(0))
            continue
        e0, e4 = (
            sample_power(address, at, n, end, peak),
            sample_power(address, at, n + 64, end, peak),
        )
        e2 = sample_power(address, at, n + 32, end, peak)
        e6 = sample_power(address, at, n + 96, end, peak)
        even = add(add(e0, e4), add(e2, e6))
        e1 = sample_power(address, at, n + 16, end, peak)
        e5 = sample_power(address, at, n + 80, end, peak)
        e3 = sample_power(address, at, n + 48, end, peak)
        e7 = sample_power(address, at, n + 112, end, peak)
        odd = add(add(e1, e5), add(e3, e7))
        set_f32(a.sums, to + group, join_sum(add(even, odd)))


@body
def sample_power(address, at, n, end, peak):
    """e^(value - peak) of 16 columns from n on; of those behind the end, that of -infinity."""
    if n >= end:
        return exp(splat(np.float32(-np.inf)))
    v = keep_lanes(load_f32(address, at + n), 0, end - n, np.float32(-np.inf))
    return exp(sub(v, splat(peak)))


@body
def sample_draw(a, tile, row, values, at, temperature, first, end):
    """The largest score of a drawn row's columns first to end - 1, and its column."""
    position, way = get_i32(a.rows, get_i32(a.index, row) * 2 + 1), row * DRAW_WORDS
    value, index = np.float32(-np.inf), np.int64(-1)
    for n in range(first, end, 4):
        w0, w1, w2, w3 = draw_words(a.sampling, way, n // 4, position)
        for lane in range(min(4, end - n)):
            word = w0 if lane == 0 else w1 if lane == 1 else w2 if lane == 2 else w3
            score = get_f32(values, at + n + lane) / temperature
            # noise of a word from 2^26 on is below -log(2^-6) < 4.2
            if word >= np.uint64(1 << 26) and score + np.float32(4.2) < value:
                continue
            score += draw_noise(word)
            if score > value or index < 0:
                value, index = score, n + lane
    sample_found(a, tile, value, index)
