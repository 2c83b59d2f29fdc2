"""How fast this machine reads memory: the bound that decode on a CPU is held against.

Only the measurement lives here; who compares what with it does not.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np


def usable_cores() -> int:
    """The number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_bandwidth(threads: int, megabytes: int = 256, rounds: int = 8) -> float:
    """Bytes per second that `threads` threads together read from memory, best of `rounds`.

    Args:
        threads: how many threads sum one part of the array each (NumPy's sum of int64 releases
            the GIL and is limited by memory, not by arithmetic).
        megabytes: size of the whole array in MiB; it should exceed the last-level cache.
        rounds: how often the array is read; the best round counts.
    """
    array = np.ones(megabytes * 2**20 // 8, dtype=np.int64)
    parts = np.array_split(array, threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            start = perf_counter()
            list(pool.map(np.sum, parts))
            best = min(best, perf_counter() - start)
    return array.nbytes / best
