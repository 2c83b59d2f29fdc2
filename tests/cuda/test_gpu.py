"""The CUDA machine on a GPU, and what it says where there is none."""

from dataclasses import replace

import numpy as np
import pytest

from mkport.declare import RECORD, Op
from mkport.errors import UserError
from mkport.library import all_ops
from mkport.machines.cpu.machine import Stuck
from mkport.machines.cuda.gpu import gpu
from mkport.machines.cuda.machine import CudaMachine
from mkport.testing import check_op
from mkport.testing.check import Form
from tests.cuda.worlds import NODES, chain

WITH_TASK = [op for op in all_ops().values() if (op.folder / "task.cuh").is_file()]
RESULT = "ab"[(NODES - 1) % 2]


def _there_is_a_gpu() -> bool:
    try:
        gpu()
    except UserError:
        return False
    return True


@pytest.mark.skipif(_there_is_a_gpu(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so() -> None:
    schedule, program, given = chain(2)
    with pytest.raises(UserError, match="GPU"):
        CudaMachine(program, schedule, given)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("form", ["standalone", "ported", "solo"])
@pytest.mark.parametrize("op", WITH_TASK, ids=lambda op: op.name)
def test_every_form_is_lawful_and_has_the_standalone_s_bits(op: Op, form: Form, dtype: str) -> None:
    for verdict in check_op(op, "cuda", form, dtype=dtype, workers=gpu().multiprocessors):
        assert verdict.ok, verdict


@pytest.mark.gpu
def test_steps_and_workers_give_the_same_bits_and_counters_wrap() -> None:
    seen = set()
    for workers, first in ((1, 0), (2, 0), (6, 2**31 // 6 - 2), (6, 2**32 // 6 - 2)):
        schedule, program, given = chain(workers)
        machine = CudaMachine(program, schedule, given, first_step=first)
        for _ in range(20):
            machine.poison()
            machine.step()
            seen.add(machine.tensors[RESULT].get().tobytes())
    assert len(seen) == 1


@pytest.mark.gpu
def test_a_lost_signal_ends_in_the_stuck_frontier() -> None:
    schedule, program, given = chain(2)
    lists = [records.copy() for records in schedule.lists]
    lists[0][2][RECORD["signal"].first] = -1
    machine = CudaMachine(program, replace(schedule, lists=tuple(lists)), given, limit_s=0.1)
    for _ in range(2):
        with pytest.raises(Stuck, match="gemm 3 .* waits for counter .* missing"):
            machine.step()


@pytest.mark.gpu
def test_more_workers_than_can_be_resident_are_refused() -> None:
    schedule, program, given = chain(6)
    crowd = replace(schedule, lists=schedule.lists * (gpu().multiprocessors + 1))
    with pytest.raises(UserError, match="blocks of this kernel resident"):
        CudaMachine(program, crowd, given)


@pytest.mark.gpu
def test_a_trace_has_a_time_for_every_record() -> None:
    schedule, program, given = chain(3)
    machine = CudaMachine(program, schedule, given)
    machine.step(trace=True)
    for records, times in zip(schedule.lists, machine.times, strict=True):
        assert times.shape == (len(records), 3)
        assert (np.diff(times, axis=1) >= 0).all() and (times > 0).all()
