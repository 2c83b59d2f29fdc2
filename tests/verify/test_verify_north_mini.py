"""A full-size step on as many workers as a large GPU has: the number of records, and the time."""

import time

import pytest

from mkport.plan import deal
from mkport.verify import verify
from tests.verify.north_mini import step
from tests.verify.toys import random_graph

WORKERS = 132


@pytest.mark.parametrize("batch", [1, 8])
def test_full_step_verifies_in_seconds(batch: int, capsys: pytest.CaptureFixture) -> None:
    verify(deal(random_graph(0), 2))  # compiles, or loads what is compiled
    began = time.perf_counter()
    schedule = deal(step(batch), WORKERS, "strided")
    dealt = time.perf_counter()
    report = verify(schedule, resident=WORKERS)
    with capsys.disabled():
        print(f"\nbatch {batch}: planned and dealt in {dealt - began:.2f} s; {report}")
    assert 30_000 <= report.records <= 50_000
    assert report.workers == WORKERS
    assert report.seconds < 30  # about one is usual; a loaded machine may take longer
