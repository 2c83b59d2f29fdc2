"""What sample must compute, in PyTorch, and the cases it is checked on."""

import numpy as np
import torch

from mkport.declare.case import Case

COLUMNS = 4096

SHAPES = {
    "greedy": {"live": 1, "n": 9000, "temperatures": [0.0]},
    "drawn": {"live": 1, "n": 9000, "temperatures": [0.8]},
    "4 of 5 rows, each its own way": {
        "live": 4,
        "n": 4100,
        "temperatures": [1.0, 0.0, 0.3, 4.0, 1.0],
    },
    "odd columns": {"live": 2, "n": 1037, "temperatures": [0.0, 1.0]},
    "ties": {"live": 8, "n": 5001, "temperatures": [0.0] * 8, "levels": 3},
    "one column": {"live": 2, "n": 1, "temperatures": [0.0, 1.0]},
    "not finite": {"live": 6, "n": 4800, "temperatures": [0.0, 1.0] * 3, "broken": True},
    "no row": {"live": 0, "n": 40, "temperatures": [1.0]},
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


def oracle(t):
    """best and at [rows, blocks]: each block's largest score and the first index that has it."""
    rows, blocks = int(t.count[0]), -(-t.n // COLUMNS)
    best = torch.empty((rows, blocks), dtype=t.x.dtype)
    at = torch.empty((rows, blocks), dtype=torch.int64)
    for row in range(rows):
        bits, low, high, choice = (int(word) for word in t.sampling[row])
        temperature = float(np.array(bits, np.int32).view(np.float32))
        scores = t.x[row]
        if temperature > 0:
            position = int(t.rows[int(t.index[row]), 1])
            scores = scores / temperature + noise(t.n, low, high, choice, position, scores.dtype)
        for block in range(blocks):
            part = scores[block * COLUMNS : (block + 1) * COLUMNS]
            at[row, block] = block * COLUMNS + part.argmax()
            best[row, block] = part.max()
            if not bool(torch.isfinite(t.x[row, block * COLUMNS : (block + 1) * COLUMNS]).all()):
                best[row, block], at[row, block] = torch.nan, -1
    return {"best": best, "at": at}


def make(rng, weights, cache, live, n, temperatures, levels=0, broken=False):
    """Random logits, seeds and places. `levels`: so few values that the largest occurs often.

    `broken` puts a value that is not finite into every row but the last.
    """
    rows = len(temperatures)
    x = rng.standard_normal((rows, n), np.float32) * 3
    if levels:
        x = rng.integers(-levels, 0, (rows, n)).astype(np.float32)
    if broken:
        for row in range(rows - 1):
            x[row, rng.integers(0, n)] = (np.nan, np.inf, -np.inf)[row % 3]
        x[0, :] = np.nan
    x[live:] = np.nan
    sampling = rng.integers(-(2**31), 2**31, (rows, 4)).astype(np.int32)
    sampling[:, 0] = np.array(temperatures, np.float32).view(np.int32)
    sampling[:, 3] = rng.integers(0, 4, rows)
    places = np.stack([rng.integers(0, 9, rows + 2), rng.integers(0, 5000, rows + 2)], axis=1)
    blocks = -(-n // COLUMNS)
    arrays = {
        "count": np.array([live], np.int32),
        "x": x,
        "sampling": sampling,
        "index": rng.permutation(rows + 2)[:rows].astype(np.int32),
        "rows": places.astype(np.int32),
        "best": np.full((rows, blocks), np.nan, np.float32),
        "at": np.full((rows, blocks), np.iinfo(np.int32).min, np.int32),
    }
    return Case(arrays, {"n": n}, ("best", "at"))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    positions = a.rows[a.index[:rows], 1].astype(np.uint64)
    temperatures = a.sampling[:rows, 0].copy().view(np.float32)
    words = a.sampling[:rows, 1:].copy().view(np.uint32).astype(np.uint64)
    kernel(a.x[:rows], temperatures, words, positions, a.best[:rows], a.at[:rows])


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    if rows := int(a.count[0]):
        blocks = -(-a.n // COLUMNS)
        tensors = (a.x, a.sampling, a.index, a.rows, a.best, a.at)
        launch("sample", rows * blocks, 256, 256 * 8, *tensors, a.n)
