"""Steps of more than 8 rows on the CUDA source: a row has the bits that it has in a step of 8."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare import RECORD
from mkport.errors import UserError
from mkport.library import find_op
from mkport.machines.cpu.machine import Stuck
from mkport.machines.cuda.layout import stage_bytes
from mkport.machines.host.machine import SHARED_BYTES, HostMachine
from mkport.models import family_of, parse_config
from mkport.models.sampled import sampled
from mkport.models.sizes import TINY
from mkport.models.step import StepShape
from mkport.plan import Graph, deal
from mkport.testing import check_op, tiny
from mkport.testing.step import run_step
from tests.kernels.cases import WIDE

MACHINES = ["host", pytest.param("cuda", marks=pytest.mark.gpu)]
SLOW = pytest.mark.slow
CONTEXT, VOCAB, PAGE = tiny.SHAPE.context, 77, 16
WINDOW = TINY["cohere2_moe"]["sliding_window"]
STAGE = stage_bytes(SHARED_BYTES)
Arrays = dict[str, np.ndarray]


@cache
def built(
    family: str, dtype: str, rows: int, stage: int, sequences: int
) -> tuple[Graph, CudaProgram]:
    """A family's tiny model as a step of so many rows, and its program."""
    fields = TINY[family] | {"vocab_size": VOCAB}
    shape = StepShape(rows, CONTEXT, sequences, rows, PAGE, weights=dtype, cache=dtype, stage=stage)
    graph = sampled(family_of(fields).build(parse_config(fields), shape))
    return graph, compose_cuda(graph.ops, dtype, dtype, rows)


def batch(graph: Graph, width: int, live: int) -> Arrays:
    """Random weights and a ragged batch: each row a sequence of its own, but the last two rows one
    sequence's; positions at edges of pages and windows, and rows that stay idle."""
    rng = np.random.default_rng(width)
    shape = replace(tiny.SHAPE, rows=width, sequences=width, logits=width)
    given = tiny.fill(graph, shape, rng)
    rows = np.full((width, 2), -1, np.int32)
    edges = [0, PAGE - 1, PAGE, WINDOW - 1, WINDOW, WINDOW + 1, CONTEXT - 1]
    rows[:live, 0] = np.arange(live)
    rows[:live, 1] = rng.integers(0, CONTEXT - 1, live)
    rows[: min(len(edges), live), 1] = edges[:live]
    rows[live - 1] = rows[live - 2] + (0, 1)
    words = given["sampling"]
    words[:, 0] = np.where(np.arange(width) % 3, np.float32(0.8).view(np.int32), 0)
    return given | {
        "count": np.array([live], np.int32),
        "rows": rows,
        "tokens": rng.integers(0, VOCAB, width).astype(np.int32),
        "logit_count": np.array([live], np.int32),
        "logit_rows": np.arange(width, dtype=np.int32),
    }


def part(given: Arrays, rows: range) -> Arrays:
    """The same state with these rows' tokens alone, as a step of 8."""
    few = {name: np.zeros((8, *given[name].shape[1:]), np.int32) for name in ("tokens", "sampling")}
    few["rows"] = np.full((8, 2), -1, np.int32)
    for name, array in few.items():
        array[: len(rows)] = given[name][rows.start : rows.stop]
    count = np.array([len(rows)], np.int32)
    places = np.arange(8, dtype=np.int32)
    return given | few | {"count": count, "logit_count": count, "logit_rows": places}


def caches(tensors: Arrays) -> Arrays:
    return {name: array for name, array in tensors.items() if name.startswith("cache")}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("family", "dtype", "width", "live", "stage", "workers"),
    [
        ("cohere2_moe", "bf16", 64, 61, STAGE, 5),
        pytest.param("cohere2_moe", "bf16", 16, 16, STAGE, 3, marks=SLOW),
        pytest.param("cohere2_moe", "bf16", 32, 30, 3000, 7, marks=SLOW),  # blocks of 16
        pytest.param("cohere2_moe", "bf16", 64, 50, 1, 1, marks=SLOW),  # of 8, and empty ones
        pytest.param("cohere2_moe", "f32", 24, 23, 9000, 2, marks=SLOW),
        *(
            pytest.param(family, "bf16", 64, 62, 4000, 4, marks=SLOW)
            for family in TINY
            if family != "cohere2_moe"
        ),
    ],
)
def test_a_row_has_the_bits_that_it_has_in_a_step_of_eight(
    request: pytest.FixtureRequest,
    machine: str,
    family: str,
    dtype: str,
    width: int,
    live: int,
    stage: int,
    workers: int,
) -> None:
    if machine == "host":
        request.getfixturevalue("host")
    graph, program = built(family, dtype, width, stage, width)
    given = batch(graph, width, live)
    wide = run_step(graph, program, machine, given, workers, seed=1)
    assert np.isfinite(wide["logits"][:live]).all()
    few, few_program = built(family, dtype, 8, stage, width)
    state = dict(given)
    for end in range(live, 0, -8):  # the last two rows together, the later one behind the other
        rows = range(max(end - 8, 0), end)
        alone = run_step(few, few_program, machine, part(state, rows), 2, seed=0)
        state |= caches(alone)
        for name in ("logits", "next"):
            found = alone[name][: len(rows)], wide[name][rows.start : rows.stop]
            assert found[0].tobytes() == found[1].tobytes(), (name, rows)
    assert all((wide[name] == array).all() for name, array in caches(state).items())


@pytest.mark.usefixtures("host")
@pytest.mark.slow
def test_workers_and_orders_give_the_same_bits() -> None:
    graph, program = built("cohere2_moe", "bf16", 64, STAGE, 64)
    given = batch(graph, 64, 61)
    seen = {
        run_step(graph, program, "host", given, workers, seed)["logits"][:61].tobytes()
        for seed, workers in enumerate((1, 2, 9, 20))
    }
    assert len(seen) == 1


@cache
def ops_program(dtype: str) -> CudaProgram:
    return compose_cuda([find_op(name) for name in WIDE], dtype, dtype, 64)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", ["bf16", pytest.param("f32", marks=SLOW)])
@pytest.mark.parametrize("op", WIDE)
def test_an_op_is_lawful_and_has_the_standalone_s_bits(
    request: pytest.FixtureRequest, machine: str, dtype: str, op: str
) -> None:
    if machine == "host":
        request.getfixturevalue("host")
    for workers in (1, 11):
        for verdict in check_op(
            find_op(op), machine, "solo", WIDE[op], dtype=dtype, workers=workers,
            program=ops_program(dtype),
        ):  # fmt: skip
            assert verdict.ok, verdict


def test_a_step_that_takes_all_rows_at_once_is_refused() -> None:
    graph, program = built("llama", "bf16", 40, 0, 1)
    with pytest.raises(UserError, match="give its StepShape the bytes to `stage`"):
        HostMachine(program, deal(graph, 2, "strided"), {})


def test_slots_of_any_number_of_pairs_are_refused() -> None:
    graph, program = built("mixtral", "bf16", 16, 0, 1)
    with pytest.raises(UserError, match="experts_up takes more token rows at a time|group takes"):
        HostMachine(program, deal(graph, 2, "strided"), {})


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("lost", ["attention", "topk", "moe_up"])
def test_a_signal_that_is_lost_in_a_wide_step_ends_in_the_stuck_frontier(
    request: pytest.FixtureRequest, machine: str, lost: str
) -> None:
    """Waits are bounded at 64 rows too, and an aborted machine can be run again."""
    if machine == "host":
        request.getfixturevalue("host")
    graph, program = built("cohere2_moe", "bf16", 64, STAGE, 64)
    schedule = deal(graph, 5, "strided")
    nodes = [node.op.name for node in schedule.graph.nodes]
    lists = [records.copy() for records in schedule.lists]
    at, signal = RECORD["node"].first, RECORD["signal"].first
    record = next(r for records in lists for r in records if nodes[r[at]] == lost)
    record[signal] = -1
    broken = replace(schedule, lists=tuple(lists))
    given = batch(graph, 64, 61)
    stuck: Any = HostMachine(program, broken, given) if machine == "host" else None
    if stuck is None:
        from mkport.machines.cuda.machine import CudaMachine

        stuck = CudaMachine(program, broken, given, limit_s=0.2)
    for _ in range(2):  # it starts again from zero
        stuck.poison()
        with pytest.raises(Stuck, match="waits for counter .* missing"):
            stuck.step()
