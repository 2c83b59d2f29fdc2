"""The CPU worker: walks its list of records; wait, run the tiles, signal.

`compose` copies this file under the generated constants and `run_tiles` of a program.
"""

import numpy as np
from numba import njit

from mkport.machines.cpu.sync import (
    add_release,
    load_acquire,
    now_ns,
    set_i64,
    yield_core,
)
from mkport.machines.cpu.vector import get_i32, set_i32

CHECK_EVERY = 64  # yields between two looks at the clock and the abort flag
# No more than this part of the limit counts between two looks: a stopped process has not waited.
PARTS = 16


@njit(nogil=True, error_model="numpy")
def wait_for(counters, counter, wanted, spins, limit_ns, errors):
    """Waits until the counter has reached `wanted`; false when the step was aborted.

    The comparison survives the counter's wrap: the difference is taken modulo 2**32. After the
    time limit it raises the abort flag (the first word of `errors`).
    """
    tries = 0
    looked = 0
    waited = 0
    while True:
        seen = load_acquire(counters, counter * COUNTER_STRIDE)
        if np.int32(seen - wanted) >= 0:
            return True
        tries += 1
        if tries > spins:
            yield_core()
            if (tries - spins) % CHECK_EVERY == 1:
                if load_acquire(errors, 0) != 0:
                    return False
                now = now_ns()
                if looked != 0:
                    waited += min(now - looked, limit_ns // PARTS + 1)
                looked = now
                if waited > limit_ns:
                    add_release(errors, 0, np.int32(1))
                    return False


@njit(nogil=True, error_model="numpy")
def note_stuck(errors, worker, index, counter, seen, wanted):
    """Writes where a worker was when it left: row 1 + worker of the error block."""
    row = (1 + worker) * COUNTER_STRIDE
    set_i32(errors, row, np.int32(1))
    set_i32(errors, row + 1, np.int32(index))
    set_i32(errors, row + 2, np.int32(counter))
    set_i32(errors, row + 3, np.int32(seen))
    set_i32(errors, row + 4, np.int32(wanted))


@njit(
    "boolean(int64,int64,int64,int64,int64,int64,int64,int64,int64,int64,int64)",
    nogil=True,
    error_model="numpy",
    cache=True,
)
def run_worker(
    worker, records, count, table, counters, step, arena, spins, limit_ns, errors, trace
):
    """Runs one worker's list for one step; false when the step was aborted.

    `records` int32 [count, RECORD_WORDS], `table` int64 tensor addresses, `counters` int32 one
    every 128 bytes, `step` the number of steps these counters have finished, `trace` int64
    [count, 3] (start, ready, end) in ns or 0. All are addresses.
    """
    for index in range(count):
        record = records + index * RECORD_WORDS * 4
        if trace != 0:
            set_i64(trace, index * 3, now_ns())
        for w in range(WAITS, WAITS_END, 2):
            counter = get_i32(record, w)
            if counter < 0:
                break
            # every counter gains the same amount each step, so the target follows from the step
            wanted = np.int32(get_i32(record, w + 1) * (step + 1))
            if not wait_for(counters, counter, wanted, spins, limit_ns, errors):
                seen = load_acquire(counters, counter * COUNTER_STRIDE)
                note_stuck(errors, worker, index, counter, seen, wanted)
                return False
        if trace != 0:
            set_i64(trace, index * 3 + 1, now_ns())
        run_tiles(record, table, arena)
        signal = get_i32(record, SIGNAL)
        if signal >= 0:
            add_release(counters, signal * COUNTER_STRIDE, get_i32(record, SIGNAL + 1))
        if trace != 0:
            set_i64(trace, index * 3 + 2, now_ns())
    return True
