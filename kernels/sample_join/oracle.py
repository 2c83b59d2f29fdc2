"""What sample_join must compute, in PyTorch, and the cases it is checked on."""

import math
from types import SimpleNamespace

import numpy as np
import torch

from mkport.declare.case import Case
from mkport.kernels.sample import oracle as sample

RIVALS = 20

SHAPES = {
    "one part": {"live": 1, "n": 100, "ways": [{}]},
    "3 of 4 rows": {"live": 3, "n": 9001, "ways": [{}, {"temperature": 1.0}] * 2},
    "more parts than threads": {"live": 1, "n": 4096 * 256 + 9, "ways": [{}]},
    "ties": {"live": 8, "n": 12300, "ways": [{}] * 8, "levels": 2},
    "not finite": {"live": 4, "n": 9000, "ways": [{}] * 4, "broken": True},
    "no row": {"live": 0, "n": 300, "ways": [{}]},
    "counted and given": {
        "live": 4,
        "n": 5000,
        "ways": [
            {"flags": sample.REPEATS},
            {"flags": sample.COUNTS, "temperature": 1.0},
            {"given": 78, "told": 4},
            {"told": 1},
        ],
    },
    "cut": {
        "live": 11,
        "n": 9001,
        "ways": [
            *[{"temperature": 90.0, "top_k": 1}] * 3,
            {"temperature": 1.0, "top_k": 4},
            {"temperature": 3.0, "top_p": 0.5},
            {"temperature": 2.0, "min_p": 0.3},
            {"temperature": 5.0, "top_k": 30, "top_p": 0.7},
            {"temperature": 9.0, "top_k": 500, "top_p": 0.9, "min_p": 0.02},
            {"temperature": 4.0, "top_k": 8999, "top_p": 0.3},
            {"temperature": 1.0, "top_k": 1, "top_p": 1e-9, "told": 21},
            {"top_k": 3, "top_p": 0.5},
        ],
    },
    "cut among ties": {
        "live": 4,
        "n": 5001,
        "levels": 3,
        "ways": [
            {"temperature": 1.0, "top_k": 7},
            {"temperature": 1.0, "top_p": 0.2, "told": 21},
            {"temperature": 1.0, "top_k": 900, "top_p": 0.2},
            {"temperature": 1.0, "min_p": 0.5, "top_k": 2000},
        ],
    },
    "edited": {
        "live": 3,
        "n": 4300,
        "ways": [
            {"temperature": 1.0, "flags": 31, "top_p": 0.6, **sample.EDITED},
            {"temperature": 2.0, "flags": sample.MASKED, "top_k": 50, "top_p": 0.9, "told": 6},
            {"temperature": 0.0, "flags": 31, **sample.EDITED},
        ],
    },
    "a large vocabulary": {
        "live": 2,
        "n": 262144,
        "ways": [
            {"temperature": 1.0, "top_k": 64, "top_p": 0.95, "told": 21},
            {"temperature": 20.0, "top_k": 5000, "top_p": 0.1},
        ],
    },
    "flat": {
        "live": 9,
        "n": 33001,
        "ways": [
            {"temperature": 50.0, "top_k": 64},
            {"temperature": 50.0, "top_k": 300},  # more than there are groups
            {"temperature": 50.0, "top_k": 64, "min_p": 0.8},
            {"temperature": 1.0, "top_k": 64, "min_p": 0.9},  # more than min_p leaves
            {"temperature": 50.0, "min_p": 0.82},
            {"temperature": 50.0, "top_p": 0.3, "told": 21},
            {"temperature": 50.0, "top_k": 64, "top_p": 0.95, "min_p": 0.05},
            {"temperature": 90.0, "flags": sample.MASKED, "top_k": 9000, "told": 3},
            {"temperature": 1e-6, "top_k": 2, "min_p": 1e-9},  # scores so large that noise is lost
        ],
    },
    "flat, among ties": {
        "live": 4,
        "n": 20011,
        "levels": 4,
        "ways": [
            {"temperature": 30.0, "top_k": 64},
            {"temperature": 30.0, "top_k": 5003},
            {"temperature": 30.0, "min_p": 0.95},
            {"temperature": 30.0, "top_k": 20011, "min_p": 1e-9},
        ],
    },
    "nothing allowed": {
        "live": 2,
        "n": 400,
        "closed": 512,
        "ways": [
            {"flags": sample.MASKED},
            {"flags": sample.MASKED, "temperature": 1.0, "top_p": 0.5},
        ],
    },
    "few columns": {"live": 2, "n": 3, "ways": [{"told": 21}, {"temperature": 1.0, "top_k": 9}]},
}


def left_of(scores, way):
    """The columns [kept] that min_p, then top_k, then top_p of a `way` [16] leave of `scores` [n].

    Source: min_p, Nguyen et al. 2024; top_k, Fan, Lewis and Dauphin 2018; top_p, Holtzman et al.,
    "The Curious Case of Neural Text Degeneration", 2019.
    """
    order = torch.argsort(scores, descending=True, stable=True)
    order = order[scores[order] > -torch.inf]
    if int(way[4]) & sample.CUTS:
        order = order[scores[order] >= scores.max() + sample.real(way[7])]
    if int(way[5]):
        order = order[: int(way[5])]
    if share := int(way[6]) & 0xFFFFFFFF:
        weights = torch.exp(scores[order] - scores.max()).double()
        before = torch.cumsum(weights, 0) - weights
        order = order[before < share / 2**32 * weights.sum()]
    return order


def chosen(t, row):
    """A row's token."""
    way, at = t.sampling[row], t.at[row]
    if bool((at < 0).any()):
        return -1
    if bool((t.best[row] == -torch.inf).all()):
        return -2
    if int(way[12]):
        return int(way[12]) - 1
    if sample.is_cut(way):
        scores = t.scores[row]
        kept = left_of(scores, way).sort().values
        return int(kept[sample.drawn(t, row, scores)[kept].argmax()])
    return int(at[t.best[row].argmax()])


def oracle(t):
    """y [rows], the tally [sequences, padded] with them counted, and ids [rows, 20] and logprobs
    [rows, 21] of the rows that are told."""
    rows = int(t.count[0])
    y, tally = torch.empty(rows, dtype=torch.int64), t.tally.clone()
    ids, logprobs = t.ids.clone(), t.logprobs.clone()
    for row in range(rows):
        y[row] = chosen(t, row)
        if y[row] < 0:
            continue
        if int(t.sampling[row, 4]) & (sample.REPEATS | sample.COUNTS):
            tally[t.rows[t.index[row], 0], y[row]] += 1
        if told := int(t.sampling[row, 11]):
            known = torch.log_softmax(t.x[row], dim=0)
            likeliest = torch.argsort(t.x[row], descending=True, stable=True)[: told - 1]
            ids[row, : len(likeliest)] = likeliest
            logprobs[row, 0] = known[y[row]]
            logprobs[row, 1 : len(likeliest) + 1] = known[likeliest]
    return {"y": y, "tally": tally, "ids": ids, "logprobs": logprobs}


def make(rng, weights, cache, **shape):
    """What `sample` leaves of the same shape."""
    before = sample.make(rng, weights, cache, **shape)
    arrays, n = before.arrays, before.values["n"]
    rows = len(arrays["x"])
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    given |= {name: x.long() for name, x in given.items() if x.dtype == torch.int32}
    for name, found in sample.oracle(SimpleNamespace(**given, n=n)).items():
        live = tuple(slice(0, size) for size in found.shape)
        arrays[name][live] = found.numpy()
    del arrays["mask"], arrays["bias"]
    arrays["y"] = np.full(rows, np.iinfo(np.int32).min, np.int32)
    arrays["ids"] = np.full((rows, RIVALS), np.iinfo(np.int32).min, np.int32)
    arrays["logprobs"] = np.full((rows, RIVALS + 1), math.nan, np.float32)
    return Case(arrays, {"n": n}, ("y", "tally", "ids", "logprobs"))


def call_standalone(kernel, a):
    """Runs the standalone kernel on a case's arrays."""
    rows = int(a.count[0])
    places = a.rows[a.index[:rows]]
    before = (a.scores, a.best, a.at, a.peaks, a.sums)
    after = (a.y, a.ids, a.logprobs)
    kernel(
        a.x[:rows], a.sampling[:rows], places, *(x[:rows] for x in before), a.tally,
        *(x[:rows] for x in after),
    )  # fmt: skip


def call_standalone_cuda(launch, a):
    """Launches the standalone CUDA kernel on a case's arrays."""
    if rows := int(a.count[0]):
        tensors = (a.x, a.sampling, a.index, a.rows, a.scores, a.best, a.at, a.peaks, a.sums)
        launch("sample_join", rows, 256, 256 * 20, *tensors, a.tally, a.y, a.ids, a.logprobs, a.n)
