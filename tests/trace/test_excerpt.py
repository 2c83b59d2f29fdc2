"""A part of a trace: what is kept of it, and what is refused."""

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.trace import Trace
from mkport.trace.excerpt import excerpt


def trace() -> Trace:
    """Four workers with three tasks of 100 ns, 10 of them waiting; the clock begins at 5000."""
    worker = np.repeat(np.arange(4, dtype=np.int32), 3)
    record = np.tile(np.arange(3, dtype=np.int32), 4)
    start = 5000 + 100 * record.astype(np.int64)
    return Trace(
        workers=4, worker=worker, record=record, node=record,
        times=np.stack([start, start + 10, start + 100], axis=1),
        nodes=(("a", "gemm"), ("b", "topk"), ("c", "gemm")), caption="measured",
    )  # fmt: skip


def test_tasks_are_cut_at_the_window_s_ends() -> None:
    part = excerpt(trace(), 105, 250)
    assert part.workers == 4 and part.tasks == 8
    assert part.nodes == (("b", "topk"), ("c", "gemm"))
    assert part.times[:2].tolist() == [[0, 5, 95], [95, 105, 145]]
    assert part.record[:2].tolist() == [1, 2] and part.node[:2].tolist() == [0, 1]
    assert part.caption == "measured; 0 µs of 0"


def test_some_workers_are_numbered_anew() -> None:
    part = excerpt(trace(), 0, 300, every=3)
    assert part.workers == 2 and part.worker.tolist() == [0] * 3 + [1] * 3
    assert part.caption.endswith("one worker in 3")


@pytest.mark.parametrize("given", [(5, 5), (-1, 9), (0, 9, 0)])
def test_no_window_is_refused(given: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="There is no excerpt"):
        excerpt(trace(), *given)


def test_a_window_behind_the_end_is_refused() -> None:
    with pytest.raises(UserError, match="300 ns long"):
        excerpt(trace(), 300, 400)
