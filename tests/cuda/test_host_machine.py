"""The persistent worker in the host build: order, wrap, tracing, and how faults show themselves."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.compose.cuda_constants import CONSTANTS
from mkport.declare import RECORD
from mkport.declare.case import from_bf16, to_bf16
from mkport.errors import UserError
from mkport.kernels.gemm.op import OP as GEMM
from mkport.machines.cpu.machine import Stuck
from mkport.machines.host.build import HostFault
from mkport.machines.host.machine import HostMachine
from mkport.plan import Graph, Schedule, deal
from mkport.testing import tiny
from mkport.testing.sanitize import composed
from tests.cuda.worlds import NODES, TOKENS, TWICE, WIDTH, chain, run_chain

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


@pytest.mark.parametrize(("shared_bytes", "chunks"), [(99 << 10, 2), (64 << 10, 1)])
def test_a_small_block_has_a_short_ring(shared_bytes: int, chunks: int) -> None:
    schedule, program, given = chain(2)
    machine = HostMachine(program, schedule, given, shared_bytes=shared_bytes)
    assert machine.shared.ring // CONSTANTS["CHUNK_BYTES"] == chunks
    assert run_chain(2, shared_bytes=shared_bytes).tobytes() == run_chain(1).tobytes()


def test_inputs_that_do_not_fit_are_refused() -> None:
    schedule, program, given = chain(2)
    with pytest.raises(
        UserError, match="gemm 0 stages 1664 bytes, .* 57344 bytes of shared memory"
    ):
        HostMachine(program, schedule, given, shared_bytes=56 << 10)


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
    """Node 2 is one empty record of worker 0: through it worker 1's node 3 waits for node 1."""
    schedule, program, given = chain(2)
    lists = [records.copy() for records in schedule.lists]
    lists[0][2, RUN + 2] = 0
    lists[0][2, SIGNAL + 1] = schedule.graph.nodes[2].tiles
    lists[1] = np.delete(lists[1], 2, axis=0)
    emptied = replace(schedule, lists=tuple(lists))
    for seed in range(20):
        machine = HostMachine(program, emptied, given, seed=seed)
        machine.step(trace=True)
        ready = machine.times[1][2][1]
        assert all(ready >= times[1][2] for times in machine.times), seed


def test_independent_records_do_not_overrun_each_other_s_inputs() -> None:
    """Nothing but the stage buffers, shared by turns, keeps the stagers from running ahead."""
    graph = Graph()
    graph.tensor("count", "i32", (1,), "input")
    graph.tensor("w", "bf16", (16, WIDTH), "weight")
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, WIDTH), np.float32) / 8
    given = {"count": np.array([TOKENS], np.int32), "w": to_bf16(w)}
    for n in range(9):
        graph.tensor(f"x{n}", "f32", (TOKENS, WIDTH), "input")
        graph.tensor(f"y{n}", "f32", (TOKENS, 16), "output")
        given[f"x{n}"] = rng.standard_normal((TOKENS, WIDTH), np.float32)
        graph.add(GEMM, f"gemm {n}", count="count", x=f"x{n}", w="w", y=f"y{n}", n=16, k=WIDTH)
    program = compose_cuda(graph.ops, "bf16", "bf16")
    for seed in range(10):
        machine = HostMachine(program, deal(graph, 1), given, seed=seed)
        machine.poison()
        machine.step()
        for n in range(9):
            wanted = from_bf16(to_bf16(given[f"x{n}"])) @ from_bf16(given["w"]).T
            assert np.abs(machine.tensors[f"y{n}"] - wanted).max() < 1e-5, (seed, n)


def test_a_body_with_the_compute_role_alone_stands_among_others() -> None:
    """gemm by the identity, twice, gemm, twice: four times the input, in any interleaving."""
    k = 400  # more than the compute threads
    graph = Graph()
    graph.tensor("count", "i32", (1,), "input")
    graph.tensor("w", "bf16", (k, k), "weight")
    graph.tensor("t0", "f32", (TOKENS, k), "input")
    for n in range(1, 5):
        graph.tensor(f"t{n}", "f32", (TOKENS, k), "scratch")
        if n % 2:
            args = {"count": "count", "w": "w", "n": k, "k": k}
            graph.add(GEMM, f"gemm {n}", x=f"t{n - 1}", y=f"t{n}", **args)
        else:
            graph.add(TWICE, f"twice {n}", x=f"t{n - 1}", y=f"t{n}", k=k)
    x = np.arange(TOKENS * k, dtype=np.float32).reshape(TOKENS, k) % 256
    given: dict[str, np.ndarray] = {
        "count": np.array([TOKENS], np.int32),
        "t0": x,
        "w": np.where(np.eye(k, dtype=bool), 0x3F80, 0).astype(np.uint16),
    }
    program = compose_cuda(graph.ops, "bf16", "bf16")
    for seed in range(10):
        schedule = deal(graph, 1 + seed % 4, share="strided")
        machine = HostMachine(program, schedule, given, seed=seed)
        machine.poison()
        machine.step()
        assert (machine.tensors["t4"] == 4 * x).all(), seed


def test_a_join_waits_for_more_than_a_record_can() -> None:
    """Six products read what the seventh overwrites: it waits for a join of some of them."""
    graph = Graph()
    graph.tensor("count", "i32", (1,), "input")
    graph.tensor("x", "f32", (TOKENS, WIDTH), "state")
    graph.tensor("w", "bf16", (WIDTH, WIDTH), "weight")
    args: dict[str, str | int] = {"count": "count", "w": "w", "n": WIDTH, "k": WIDTH}
    for n in range(6):
        graph.tensor(f"y{n}", "f32", (TOKENS, WIDTH), "scratch")
        graph.add(GEMM, f"gemm {n}", x="x", y=f"y{n}", **args)
    graph.add(GEMM, "last", x="y0", y="x", **args)
    x = np.random.default_rng(0).standard_normal((TOKENS, WIDTH)).astype(np.float32)
    w = np.random.default_rng(1).integers(0x3D00, 0x3E00, (WIDTH, WIDTH)).astype(np.uint16)
    outputs = set()
    for seed in range(10):
        schedule = deal(graph, 1 + seed % 4, share="strided")
        assert "join" in [node.op.name for node in schedule.graph.nodes]
        program = compose_cuda(schedule.graph.ops, "bf16", "bf16")
        given: dict[str, np.ndarray] = {
            "count": np.array([TOKENS], np.int32),
            "x": x.copy(),
            "w": w,
        }
        machine = HostMachine(program, schedule, given, seed=seed)
        machine.poison()
        machine.step()
        arrays = [machine.tensors["x"], *(machine.tensors[f"y{n}"] for n in range(6))]
        outputs.add(b"".join(array.tobytes() for array in arrays))
        assert all((y == arrays[1]).all() for y in arrays[1:])
    assert len(outputs) == 1


def late(source: str) -> str:
    """The file with a gemm whose loader waits for the record's waits first."""
    head = "struct gemm : MkProductBody {\n"
    assert source.count(head) == 1
    return source.replace(head, f"{head}  static constexpr bool late = true;\n")


def test_a_loader_may_wait_for_its_record() -> None:
    schedule, program, given = chain(3)
    machine = HostMachine(replace(program, source=late(program.source)), schedule, given, seed=1)
    machine.step()
    assert machine.tensors["ab"[(NODES - 1) % 2]].tobytes() == run_chain(1).tobytes()
    lists = [records.copy() for records in schedule.lists]
    lose_signal(lists)
    lost = replace(schedule, lists=tuple(lists))
    machine = HostMachine(replace(program, source=late(program.source)), lost, given)
    with pytest.raises(Stuck, match="gemm 3"):
        machine.step()


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
        "ring.full + ring.which(), MkRing::parity(ring.number), MK_WAIT_FULL_CHUNK",
        "ring.full + ring.which(), MkRing::parity(ring.number) ^ 1, MK_WAIT_FULL_CHUNK",
        None,
    ),
    "a chunk that is never given back": (
        "give_back(int size) {\n    mk_sync_warp();  // all lanes have read it\n    if",
        "give_back(int size) {\n    if (mk_lane() > 99) if",
        "the load role waits for ring chunk to be free",
    ),
    "an arrival too many": (
        "mk_barrier_arrive(role.shared.staged + r % MK_BOXES);",
        "mk_barrier_arrive(role.shared.staged + r % MK_BOXES); "
        "mk_barrier_arrive(role.shared.staged + r % MK_BOXES);",
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
        "    mk_float4 y = P::join(s);",
        "    if (mk_lane() == 7) mk_sync_warp(); mk_float4 y = P::join(s);",
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


def test_an_mbarrier_whose_last_phase_nobody_saw_is_not_met_again() -> None:
    """A rule of PTX that hardware does not enforce; NVIDIA's synccheck calls it a missing wait."""
    graph, program = composed("llama", None)
    look = (
        "role.guard.wait(role.shared.computed + place, r / MK_BOXES & 1, MK_WAIT_COMPUTED, place);"
    )
    assert program.source.count(look) == 1
    blind = replace(program, source=program.source.replace(look, ""))
    given = tiny.fill(graph, tiny.SHAPE, np.random.default_rng(0))
    machine = HostMachine(blind, deal(graph, 3, "strided"), given)
    with pytest.raises(HostFault, match="nobody has looked"):
        machine.step()
