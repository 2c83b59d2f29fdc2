"""How far can a loader run ahead?

A worker's tasks read bytes that nothing writes. A loader fetches them, one task after another, at
so many bytes a nanosecond. A task may begin to compute when its wait is over *and* its bytes are
there; computing takes no time here. A ring holds `ahead` bytes, so the loader may begin with a
task's bytes at most ahead / speed nanoseconds before that task's wait is over, and never before
it has finished with the task before.

Return when each task is done. With ahead = 0 the loader begins when the wait is over.
"""


def done(waits: list[float], sizes: list[float], speed: float, ahead: float) -> list[float]:
    """When each task is done, in ns; `waits` say when each wait is over, `sizes` are in bytes."""
    loaded = 0.0  # when the loader has finished with the task before
    ends: list[float] = []
    for wait, size in zip(waits, sizes, strict=True):
        # blank: when the loader begins and ends, then when the task is done
        begin = max(loaded, wait - ahead / speed, 0.0)
        loaded = begin + size / speed
        ends.append(max(wait, loaded))
        # end
    return ends


# === check
HINT = "The loader begins at max(loaded, wait - ahead / speed, 0); the later of both ends counts."
READ = "Why run-ahead works"
WRONG = ("max(loaded, wait - ahead / speed, 0.0)", "max(loaded, wait)")


def check(yours, report):
    """A chain of waits with small and large rings."""
    waits, sizes = [0.0, 100.0, 200.0, 300.0], [400.0, 80.0, 80.0, 400.0]
    for ahead, wanted in (
        (0.0, [100.0, 120.0, 220.0, 400.0]),
        (80.0, [100.0, 120.0, 200.0, 380.0]),
        (400.0, [100.0, 120.0, 200.0, 300.0]),
    ):
        got = yours.done(waits, sizes, 4.0, ahead)
        report.equal(f"{ahead:.0f} bytes ahead", got, wanted)
