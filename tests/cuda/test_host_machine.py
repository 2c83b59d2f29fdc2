"""The persistent worker in the host build: order, wrap, tracing, and how faults show themselves."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram
from mkport.compose.cuda_constants import CONSTANTS
from mkport.declare import RECORD
from mkport.errors import UserError
from mkport.kernels.gemm.op import OP as GEMM
from mkport.machines.cpu.machine import Stuck
from mkport.machines.host.build import HostFault
from mkport.machines.host.machine import HostMachine
from mkport.plan import Graph, Schedule, deal
from tests.cuda.worlds import NODES, TOKENS, chain, run_chain

pytestmark = pytest.mark.usefixtures("host")

SIGNAL, WAITS, RUN = (RECORD[name].first for name in ("signal", "waits", "run"))


def test_the_chain_is_right_and_the_same_for_all_workers_and_seeds() -> None:
    _, _, given = chain(1)
    wanted = given["in"].astype(np.float64)
    for n in range(NODES):
        w = (given[f"w{n}"].astype(np.uint32) << 16).view(np.float32)
        wanted = wanted @ w.T.astype(np.float64)
    got = run_chain(1)
    assert np.abs(got - wanted).max() <= 0.02 * np.abs(wanted).max()
    for seed in range(20):
        assert run_chain(1 + seed % 4, seed).tobytes() == got.tobytes(), seed


def test_a_seed_gives_the_same_run_again() -> None:
    schedule, program, given = chain(3)
    times = []
    for _ in range(2):
        machine = HostMachine(program, schedule, given, seed=5)
        machine.step(trace=True)
        times.append(np.concatenate(machine.times))
    assert (times[0] == times[1]).all()


@pytest.mark.parametrize("first_step", [2**31 // 6 - 2, 2**32 // 6 - 2, 2**31 - 3])
def test_counters_survive_their_wrap(first_step: int) -> None:
    assert run_chain(2, steps=5, first_step=first_step).tobytes() == run_chain(1).tobytes()


def test_a_small_block_has_a_short_ring() -> None:
    schedule, program, given = chain(2)
    machine = HostMachine(program, schedule, given, shared_bytes=99 << 10)
    assert machine.shared.slots == 2
    assert run_chain(2, shared_bytes=99 << 10).tobytes() == run_chain(1).tobytes()


def test_inputs_that_do_not_fit_are_refused() -> None:
    schedule, program, given = chain(2)
    with pytest.raises(UserError, match="gemm 0 stages 1664 bytes .* 65536 bytes of shared memory"):
        HostMachine(program, schedule, given, shared_bytes=64 << 10)


def test_more_rows_than_composed_for_are_refused() -> None:
    schedule, program, given = chain(2)
    narrow = replace(program, rows=TOKENS - 1)
    with pytest.raises(UserError, match="gemm 0 has 3 token rows, .* composed for 2"):
        HostMachine(narrow, schedule, given)


def test_many_short_records_pass_the_boxes() -> None:
    """More records on one worker than the runtime keeps at once."""
    graph = Graph()
    graph.tensor("count", "i32", (1,), "input")
    graph.tensor("x", "f32", (TOKENS, 16), "scratch")
    graph.tensor("w", "bf16", (16, 16), "weight")
    args: dict[str, str | int] = {"count": "count", "x": "x", "w": "w", "n": 16, "k": 16}
    count = 2 * CONSTANTS["BOXES"] + 3
    for n in range(count):
        graph.tensor(f"y{n}", "f32", (TOKENS, 16), "scratch")
        graph.add(GEMM, f"gemm {n}", y=f"y{n}", **args)
        args["x"] = f"y{n}"
    schedule = deal(graph, 2, share="strided")
    _, program, _ = chain(1)
    identity = np.where(np.eye(16, dtype=bool), 0x3F80, 0).astype(np.uint16)
    x = np.arange(TOKENS * 16, dtype=np.float32).reshape(TOKENS, 16)
    given: dict[str, np.ndarray] = {
        "count": np.array([TOKENS], np.int32),
        "x": x,
        "w": identity,
    }
    for seed in range(3):
        machine = HostMachine(program, schedule, given, seed=seed)
        machine.step(trace=True)
        assert (machine.tensors[f"y{count - 1}"] == x).all()
        for times in machine.times:
            assert (np.diff(times, axis=1) >= 0).all()


def test_a_record_without_tiles_signals_after_its_waits() -> None:
    """The middle node's tiles are taken away: who waits for it still waits for the one before."""
    schedule, program, given = chain(2)
    lists = [records.copy() for records in schedule.lists]
    for records in lists:
        records[2, RUN + 2] = 0
    emptied = replace(schedule, lists=tuple(lists))
    for seed in range(8):
        machine = HostMachine(program, emptied, given, seed=seed)
        machine.step(trace=True)
        for worker in range(2):  # node 3 starts after every record of node 1 has ended
            ready = machine.times[worker][3][1]
            assert all(ready >= times[1][2] for times in machine.times)


def broken(change: Callable[[list[np.ndarray]], None]) -> tuple[CudaProgram, Schedule, dict]:
    schedule, program, given = chain(2)
    lists = [records.copy() for records in schedule.lists]
    change(lists)
    return program, replace(schedule, lists=tuple(lists)), given


def lose_signal(lists: list[np.ndarray]) -> None:
    lists[0][2][SIGNAL] = -1


def raise_target(lists: list[np.ndarray]) -> None:
    lists[0][2][WAITS + 1] += 1


@pytest.mark.parametrize(("change", "stuck"), [(lose_signal, "gemm 3"), (raise_target, "gemm 2")])
def test_a_lost_signal_ends_in_the_stuck_frontier(
    change: Callable[[list[np.ndarray]], None], stuck: str
) -> None:
    program, schedule, given = broken(change)
    machine = HostMachine(program, schedule, given)
    for _ in range(2):  # an aborted machine starts again from zero
        with pytest.raises(Stuck) as caught:
            machine.step()
        lines = str(caught.value).splitlines()
        assert lines[0].startswith("The step was aborted: a wait ran past its limit.")
        assert stuck in lines[1] and "waits for counter" in lines[1] and "missing" in lines[1]
        assert "has" in lines[1] and "needs" in lines[1]


FAULTS = {
    # what is planted: (text of the file, what stands there instead, the complaint)
    "the ring's parity": (
        "ring.full + ring.at, ring.phase, MK_WAIT_FULL_SLOT",
        "ring.full + ring.at, ring.phase ^ 1, MK_WAIT_FULL_SLOT",
        None,
    ),
    "a slot that is never given back": (
        "if (mk_lane() == 0) mk_barrier_arrive(ring.empty + ring.at);",
        "",
        "the load role waits for ring slot to be free",
    ),
    "an arrival too many": (
        "mk_barrier_arrive(role.shared.staged + (r & 1));",
        "mk_barrier_arrive(role.shared.staged + (r & 1)); "
        "mk_barrier_arrive(role.shared.staged + (r & 1));",
        None,
    ),
    "a warp that meets another barrier": (
        "mk_barrier_any(MK_COMPUTE_BARRIER, MK_COMPUTERS, role.guard.dead)",
        "mk_barrier_any(MK_COMPUTE_BARRIER + (mk_warp() == 3), MK_COMPUTERS, role.guard.dead)",
        "named barrier",
    ),
    "a warp that joins with another count": (
        "mk_barrier_any(MK_COMPUTE_BARRIER, MK_COMPUTERS, role.guard.dead)",
        "mk_barrier_any(MK_COMPUTE_BARRIER, MK_COMPUTERS - 32 * (mk_warp() == 3), role.guard.dead)",
        "named barrier 1 is met by",
    ),
    "a lane that leaves its warp": (
        "const int row = mk_lane() / 2, column = tile * ROWS + row;",
        "if (mk_lane() == 7) mk_sync_warp();\n"
        "    const int row = mk_lane() / 2, column = tile * ROWS + row;",
        None,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    before, after, complaint = FAULTS[name]
    schedule, program, given = chain(2)
    assert program.source.count(before) == 1
    faulty = replace(program, source=program.source.replace(before, after))
    right = run_chain(2).tobytes()
    machine = HostMachine(faulty, schedule, given)
    machine.poison()
    try:
        machine.step()
    except (Stuck, HostFault) as error:
        assert complaint is None or complaint in str(error)
    else:
        assert complaint is None
        assert machine.tensors["ab"[(NODES - 1) % 2]].tobytes() != right
