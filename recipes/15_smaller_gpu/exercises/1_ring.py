"""Divide the shared memory.

A block has `shared` bytes. A fixed part is always needed; the stage buffers of two neighbouring
records must fit side by side; what is left is the ring, in whole chunks. The ring must have at
least two chunks, or nothing could stream.

Return the number of chunks, or 0 when the record does not fit this chip.
"""


def chunks(shared: int, fixed: int, stages: list[int], chunk: int) -> int:
    """Chunks of the ring; `stages` are the stage buffers of a worker's records, in order."""
    # blank: the largest two neighbours together, then what is left
    pair = max((a + b for a, b in zip(stages, stages[1:], strict=False)), default=max(stages))
    left = (shared - fixed - pair) // chunk
    return left if left >= 2 else 0
    # end


# === check
HINT = "zip(stages, stages[1:]) gives the neighbours; a worker with one record needs only that."
READ = "Shared memory"
WRONG = ("left if left >= 2 else 0", "left")


def check(yours, report):
    """Three chips."""
    kib = 1024
    stages = [8 * kib, 20 * kib, 4 * kib, 16 * kib]
    for shared, wanted in ((227, 5), (163, 3), (99, 0)):
        got = yours.chunks(shared * kib, 24 * kib, stages, 33 * kib)
        report.equal(f"a block of {shared} KiB", got, wanted)
    report.equal("one record", yours.chunks(100 * kib, 20 * kib, [14 * kib], 33 * kib), 2)
