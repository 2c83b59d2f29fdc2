"""The sample body: one block of one row. Greedy rows go 16 columns at a time; in drawn ones most
columns are out of the running before their noise is worked out."""

import numpy as np

from mkport.machines.cpu.vector import (
    add,
    body,
    get_f32,
    get_i32,
    join_max,
    join_sum,
    keep_lanes,
    largest,
    load_f32,
    set_f32,
    set_i32,
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
    x, end = row * a.n, min(first + 4096, a.n)
    top, strange = sample_top(a.x, x, first, end)
    if strange:
        set_f32(a.best, tile, np.float32(np.nan))
        set_i32(a.at, tile, np.int32(-1))
    elif get_f32(a.sampling, row * 4) > 0:
        sample_draw(a, tile, row, first, end)
    else:
        found = first
        while get_f32(a.x, x + found) != top:
            found += 1
        set_f32(a.best, tile, top)
        set_i32(a.at, tile, np.int32(found))


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
def sample_draw(a, tile, row, first, end):
    """The largest score of a drawn row's columns first to end - 1, and its column."""
    x, temperature = row * a.n, get_f32(a.sampling, row * 4)
    low, high = (
        np.uint32(get_i32(a.sampling, row * 4 + 1)),
        np.uint32(get_i32(a.sampling, row * 4 + 2)),
    )
    position = np.uint32(get_i32(a.rows, get_i32(a.index, row) * 2 + 1))
    choice = np.uint32(get_i32(a.sampling, row * 4 + 3))
    value, index = np.float32(-np.inf), np.int64(-1)
    for n in range(first, end, 4):
        w0, w1, w2, w3 = sample_words(n // 4, position, choice, low, high)
        for lane in range(min(4, end - n)):
            word = w0 if lane == 0 else w1 if lane == 1 else w2 if lane == 2 else w3
            score = get_f32(a.x, x + n + lane) / temperature
            # noise of a word from 2^26 on is below -log(2^-6) < 4.2
            if word >= np.uint64(1 << 26) and score + np.float32(4.2) < value:
                continue
            score += sample_noise(word)
            if score > value or index < 0:
                value, index = score, n + lane
    set_f32(a.best, tile, value)
    set_i32(a.at, tile, np.int32(index))


@body
def sample_words(block, position, choice, low, high):
    """Philox4x32-10: four words, each in the low half of a uint64.

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = np.uint64(block), np.uint64(position), np.uint64(choice), np.uint64(0)
    k0, k1 = np.uint64(low), np.uint64(high)
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (p1 >> half) ^ c1 ^ k0, (p0 >> half) ^ c3 ^ k1
        c1, c3 = p1 & mask, p0 & mask
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return c0, c1, c2, c3


@body
def sample_noise(word):
    """-log(-log(1 - v)) of a word as a number v between 0 and 1; fine where v is small."""
    v = (np.float32(word) + np.float32(0.5)) * np.float32(2.0**-32)
    v = min(v, np.float32(1 - 2**-24))
    if v < np.float32(0.25):
        return -sample_log(-sample_log_near(-v, np.float32(0)))
    return -sample_log(-sample_log(np.float32(1) - v))


@body
def sample_log(x):
    """log x of a normal positive float32: x = 2^n (1 + f), 1 + f from 1 / sqrt 2 to sqrt 2."""
    bits = np.float32(x).view(np.int32)
    n = np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23)
    m = np.int32(bits - np.int32(n << np.int32(23))).view(np.float32)
    return sample_log_near(m - np.float32(1), np.float32(n))


@body
def sample_log_near(f, n):
    """log(1 + f) + n ln 2, each step rounded to float32. Source: logf of the Cephes library."""
    z = f * f
    p = np.float32(7.0376836292e-2) * f + np.float32(-1.1514610310e-1)
    p = p * f + np.float32(1.1676998740e-1)
    p = p * f + np.float32(-1.2420140846e-1)
    p = p * f + np.float32(1.4249322787e-1)
    p = p * f + np.float32(-1.6668057665e-1)
    p = p * f + np.float32(2.0000714765e-1)
    p = p * f + np.float32(-2.4999993993e-1)
    p = p * f + np.float32(3.3333331174e-1)
    y = p * f * z + np.float32(-2.12194440e-4) * n
    return f + (y - np.float32(0.5) * z) + np.float32(0.693359375) * n
