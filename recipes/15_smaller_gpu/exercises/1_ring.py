"""Divide the shared memory.

A block has `shared` bytes. A fixed part is always needed; the stage buffers of two neighbouring
records must fit side by side; what is left is the ring, in whole chunks. Without a single chunk
nothing could stream.

Return the number of chunks, or 0 when the records do not fit this chip.
"""


def chunks(shared: int, fixed: int, stages: list[int], chunk: int) -> int:
    """Chunks of the ring; `stages` are the stage buffers of a worker's records, in order."""
    # blank: the largest two neighbours together, then what is left
    pair = max((a + b for a, b in zip(stages, stages[1:], strict=False)), default=max(stages))
    left = (shared - fixed - pair) // chunk
    return max(left, 0)
    # end


# === check
HINT = "zip(stages, stages[1:]) gives the neighbours; a worker with one record needs only that."
READ = "Shared memory"
WRONG = ("max(left, 0)", "left")


def check(yours, report):
    """Four chips; the largest neighbours are neither the first nor the two largest."""
    kib = 1024
    stages = [4 * kib, 20 * kib, 8 * kib, 16 * kib, 14 * kib]
    for shared, wanted in ((227, 173), (163, 109), (99, 45), (48, 0)):
        got = yours.chunks(shared * kib, 24 * kib, stages, kib)
        report.equal(f"a block of {shared} KiB, in chunks of 1", got, wanted)
        got = yours.chunks(shared * kib, 24 * kib, stages, 33 * kib)
        report.equal(f"a block of {shared} KiB, in chunks of 33", got, wanted // 33)
    report.equal("one record", yours.chunks(100 * kib, 20 * kib, [14 * kib], 33 * kib), 2)
