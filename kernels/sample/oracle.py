"""What sample must compute, in PyTorch, and the cases it is checked on."""

import math

import numpy as np
import torch

from mkport.declare.case import Case

COLUMNS, GROUP = 4096, 128
REPEATS, COUNTS, BIASED, EARLY, MASKED, CUTS = 1, 2, 4, 8, 16, 32  # flags
EDITS = 31  # those that change logits
PROMPT, END = 1 << 28, 1 << 29  # of a token's tally
EDITED = {"repetition": 1.3, "frequency": 0.5, "presence": 0.25}

# a row is a dict of what `way` takes
SHAPES = {
    "greedy": {"live": 1, "n": 9000, "ways": [{}]},
    "drawn": {"live": 1, "n": 9000, "ways": [{"temperature": 0.8}]},
    "4 of 5 rows, each its own way": {
        "live": 4,
        "n": 4100,
        "ways": [{"temperature": t} for t in (1.0, 0.0, 0.3, 4.0, 1.0)],
    },
    "odd columns": {"live": 2, "n": 1037, "ways": [{}, {"temperature": 1.0}]},
    "ties": {"live": 8, "n": 5001, "ways": [{}] * 8, "levels": 3},
    "one column": {"live": 2, "n": 1, "ways": [{}, {"temperature": 1.0}]},
    "not finite": {
        "live": 6,
        "n": 4800,
        "ways": [{}, {"temperature": 1.0}] * 3,
        "broken": True,
    },
    "no row": {"live": 0, "n": 40, "ways": [{"temperature": 1.0}]},
    "edited": {
        "live": 7,
        "n": 4300,
        "ways": [
            {"flags": REPEATS, **EDITED},
            {"temperature": 0.7, "flags": COUNTS, **EDITED},
            {"flags": BIASED},
            {"temperature": 2.0, "flags": EARLY},
            {"flags": MASKED},
            {"temperature": 1.0, "flags": 31, **EDITED},
            {"temperature": 1.0, "flags": 31, "top_p": 0.9, "told": 3, **EDITED},
        ],
    },
    "cut and told": {
        "live": 4,
        "n": 9001,
        "ways": [
            {"temperature": 0.8, "top_k": 5},
            {"temperature": 1.0, "top_p": 0.9, "told": 21},
            {"temperature": 1.5, "min_p": 0.1},
            {"told": 1},
        ],
    },
    "a part that is masked": {
        "live": 2,
        "n": 8300,
        "ways": [{"flags": MASKED}, {"flags": MASKED, "temperature": 1.0, "top_k": 3}],
        "closed": 4096,
    },
}


def philox(counter, key):
    """Philox4x32-10: four arrays of words, uint64 [n] below 2^32, of a counter of four such arrays
    and a key of two words.

    Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return c0, c1, c2, c3


def noise(n, seed_low, seed_high, choice, position, dtype):
    """The Gumbel noise [n] of columns 0 to n - 1, in torch's `dtype`."""
    blocks = np.arange(-(-n // 4), dtype=np.uint64)
    place, number = (np.full_like(blocks, value & 0xFFFFFFFF) for value in (position, choice))
    key = tuple(np.uint64(word & 0xFFFFFFFF) for word in (seed_low, seed_high))
    words = np.stack(philox((blocks, place, number, np.zeros_like(blocks)), key), axis=1)
    v = (words.reshape(-1)[:n].astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    v = torch.from_numpy(np.minimum(v, np.float32(1 - 2**-24))).to(dtype)
    return -torch.log(-torch.log1p(-v))


def real(word):
    """The float32 whose bits an int32 word is."""
    return float(np.array(int(word), np.int32).view(np.float32))


def is_cut(way):
    """Whether a row's way [16] leaves tokens out before it draws."""
    return real(way[0]) > 0 and bool(way[5] or way[6] or way[4] & CUTS)


def scores_of(t, row):
    """What a row is chosen by [n]: its logits changed as its way says."""
    way, scores, flags = t.sampling[row], t.x[row].clone(), int(t.sampling[row, 4])
    sequence = int(t.rows[int(t.index[row]), 0])
    tally = t.tally[sequence, : t.n]
    times = tally & (PROMPT - 1)
    if flags & REPEATS:
        penalty, seen = real(way[8]), (times > 0) | (tally & PROMPT > 0)
        repeated = torch.where(scores > 0, scores / penalty, scores * penalty)
        scores = torch.where(seen, repeated, scores)
    if flags & COUNTS:
        lost = times.to(scores.dtype) * real(way[9]) + real(way[10])
        scores = torch.where(times > 0, scores - lost, scores)
    if flags & BIASED:
        scores = scores + t.bias[sequence, : t.n]
    if flags & EARLY:
        scores = torch.where(tally & END > 0, -torch.inf, scores)
    if flags & MASKED:
        columns = torch.arange(t.n)
        bits = t.mask[sequence][columns // 32] >> (columns % 32) & 1
        scores = torch.where(bits > 0, scores, -torch.inf)
    return scores / real(way[0]) if real(way[0]) > 0 else scores


def drawn(t, row, scores):
    """A row's scores [n] and noise, where it draws."""
    temperature, low, high, choice = (int(word) for word in t.sampling[row, :4])
    if real(temperature) == 0:
        return scores
    position = int(t.rows[int(t.index[row]), 1])
    return scores + noise(len(scores), low, high, choice, position, scores.dtype)


def weigh(values):
    """Each group's largest of values [n], and the sum of e^(value - largest): both [groups]."""
    groups = torch.nn.functional.pad(values, (0, -len(values) % GROUP), value=-torch.inf)
    groups = groups.reshape(-1, GROUP)
    peaks = groups.max(dim=1).values
    sums = torch.exp(groups - peaks[:, None]).sum(dim=1)
    return peaks, torch.where(peaks == -torch.inf, 0, sums)


def oracle(t):
    """best and at [rows, blocks]: each block's largest score and the first index that has it; of
    rows that need them scores [rows, padded], peaks and sums [rows, 2, groups]."""
    rows, blocks = int(t.count[0]), -(-t.n // COLUMNS)
    best = torch.empty((rows, blocks), dtype=t.x.dtype)
    at = torch.empty((rows, blocks), dtype=torch.int64)
    scores, peaks, sums = t.scores.clone(), t.peaks.clone(), t.sums.clone()
    for row in range(rows):
        values = scores_of(t, row)
        if is_cut(t.sampling[row]) or int(t.sampling[row, 4]) & EDITS:
            scores[row, : t.n], scores[row, t.n :] = values, -torch.inf
        if is_cut(t.sampling[row]):
            peaks[row, 0], sums[row, 0] = weigh(values)
        if t.sampling[row, 11]:
            peaks[row, 1], sums[row, 1] = weigh(t.x[row])
        values = drawn(t, row, values)
        for block in range(blocks):
            part = values[block * COLUMNS : (block + 1) * COLUMNS]
            at[row, block] = block * COLUMNS + part.argmax()
            best[row, block] = part.max()
            if not bool(torch.isfinite(t.x[row, block * COLUMNS : (block + 1) * COLUMNS]).all()):
                best[row, block], at[row, block] = torch.nan, -1
    return {"best": best, "at": at, "scores": scores, "peaks": peaks, "sums": sums}


def way(
    rng, temperature=0.0, flags=0, top_k=0, top_p=0.0, min_p=0.0, repetition=1.0, frequency=0.0,
    presence=0.0, told=0, given=0,
):  # fmt: skip
    """A row's words [16], with a random seed and choice."""
    words = np.zeros(16, np.int32)
    words[1:3] = rng.integers(-(2**31), 2**31, 2)
    words[3] = rng.integers(0, 4)
    words[4], words[5], words[11], words[12] = flags | (CUTS if min_p else 0), top_k, told, given
    words[6] = np.array(int(top_p * 2**32), np.uint32).view(np.int32)
    reals = {0: temperature, 7: math.log(min_p or 1), 8: repetition, 9: frequency, 10: presence}
    for place, value in reals.items():
        words[place] = np.array(value, np.float32).view(np.int32)
    return words


def make(rng, weights, cache, live, n, ways, levels=0, broken=False, closed=0):
    """Random logits, seeds and places. `levels`: so few values that the largest occurs often.

    `broken` puts a value that is not finite into every row but the last; `closed` masks so many
    columns at the beginning.
    """
    rows, padded = len(ways), -(-n // GROUP) * GROUP
    x = rng.standard_normal((rows, n), np.float32) * 3
    if levels:
        x = rng.integers(-levels, 0, (rows, n)).astype(np.float32)
    if broken:
        for row in range(rows - 1):
            x[row, rng.integers(0, n)] = (np.nan, np.inf, -np.inf)[row % 3]
        x[0, :] = np.nan
    x[live:] = np.nan
    places = np.stack([rng.permutation(rows + 2), rng.integers(0, 5000, rows + 2)], axis=1)
    tally = rng.integers(0, 4, (rows + 2, padded)) * rng.integers(0, 2, (rows + 2, padded))
    tally += PROMPT * rng.integers(0, 2, (rows + 2, padded))
    tally += END * rng.integers(0, 2, (rows + 2, padded))
    allowed = rng.integers(0, 4, (rows + 2, padded)) == 0
    allowed[:, :closed] = False
    arrays = {
        "count": np.array([live], np.int32),
        "x": x,
        "sampling": np.stack([way(rng, **given) for given in ways]),
        "index": rng.permutation(rows + 2)[:rows].astype(np.int32),
        "rows": places.astype(np.int32),
        "mask": np.packbits(allowed, axis=1, bitorder="little").view(np.int32),
        "bias": rng.standard_normal((rows + 2, padded), np.float32),
        "tally": tally.astype(np.int32),
        "scores": np.full((rows, padded), np.nan, np.float32),
        "best": np.full((rows, -(-n // COLUMNS)), np.nan, np.float32),
        "at": np.full((rows, -(-n // COLUMNS)), np.iinfo(np.int32).min, np.int32),
        "peaks": np.full((rows, 2, padded // GROUP), np.nan, np.float32),
        "sums": np.full((rows, 2, padded // GROUP), np.nan, np.float32),
    }
    return Case(arrays, {"n": n}, ("best", "at", "scores", "peaks", "sums"))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    places = a.rows[a.index[:rows]]
    before = (a.x[:rows], a.sampling[:rows], places, a.mask, a.bias, a.tally)
    kernel(*before, a.scores[:rows], a.best[:rows], a.at[:rows], a.peaks[:rows], a.sums[:rows])


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    if rows := int(a.count[0]):
        blocks = -(-a.n // COLUMNS)
        tensors = (a.x, a.sampling, a.index, a.rows, a.mask, a.bias, a.tally, a.scores, a.best)
        launch("sample", rows * blocks, 256, 256 * 8, *tensors, a.at, a.peaks, a.sums, a.n)
