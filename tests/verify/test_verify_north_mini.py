"""A full-size step on as many workers as a large GPU has: it verifies, and how many records it has.

How long that takes is measured by `mkport bench --plan`.
"""

import pytest

from mkport.plan import deal
from mkport.verify import verify
from tests.verify.north_mini import step

WORKERS = 132


@pytest.mark.parametrize("batch", [1, 8])
def test_full_step_verifies(batch: int) -> None:
    report = verify(deal(step(batch), WORKERS, "strided"), resident=WORKERS)
    assert 30_000 <= report.records <= 50_000
    assert report.workers == WORKERS
