"""Flagged scratch in the host build: the bits of counters, whatever the order; and what a word that
nobody writes looks like."""

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.errors import UserError
from mkport.machines.cpu.machine import Stuck
from mkport.machines.host.machine import HostMachine
from mkport.plan import Graph, deal, flag
from mkport.testing import tiny
from mkport.verify import verify

OPS = tiny.library()
Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def programs() -> dict[str, CudaProgram]:
    return {
        "counters": compose_cuda(OPS, "bf16", "bf16", 2),
        "flagged": compose_cuda(OPS, "bf16", "bf16", 2, flagged=True),
        "flagged, one row": compose_cuda(OPS, "bf16", "bf16", 1, flagged=True),
    }


def step_of(family: str, rows: int) -> tuple[Graph, Arrays]:
    """A small model's step whose rows are all alive, each of a sequence of its own."""
    shape = replace(tiny.SHAPE, rows=rows, sequences=rows, logits=rows)
    graph = tiny.graphs(shape)[family]
    given = tiny.fill(graph, replace(shape, rows=rows + 1), np.random.default_rng(0))
    places = np.stack([np.arange(rows), 301 - 40 * np.arange(rows)], axis=1).astype(np.int32)
    given |= {"rows": places, "tokens": given["tokens"][:rows]}
    given["count"][:] = given["logit_count"][:] = rows
    given["logit_rows"] = np.arange(rows, dtype=np.int32)
    return graph, given


def logits_of(graph: Graph, program: CudaProgram, given: Arrays, seed: int = 0) -> np.ndarray:
    schedule = deal(graph, 3, "strided")
    verify(schedule)
    machine = HostMachine(program, schedule, {n: a.copy() for n, a in given.items()}, seed=seed)
    machine.poison()
    for _ in range(2):
        machine.step()
    return machine.tensors["logits"].copy()


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether all bits are the same, but for those of NaNs."""
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("family", ["cohere2_moe", "qwen3_moe", "mixtral", "llama"])
def test_the_bits_are_those_of_counters(
    family: str, rows: int, programs: dict[str, CudaProgram]
) -> None:
    graph, given = step_of(family, rows)
    want = logits_of(graph, programs["counters"], given)
    assert np.isfinite(want).all()
    program = programs["flagged, one row" if rows == 1 else "flagged"]
    for seed in range(2):
        assert same(logits_of(flag(graph), program, given, seed), want)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_step_may_have_no_token_and_a_token_no_experts(
    rows: int, programs: dict[str, CudaProgram]
) -> None:
    graph, given = step_of("cohere2_moe", rows)
    program = programs["flagged, one row" if rows == 1 else "flagged"]
    router = next(n for n in given if n.endswith("1.mlp.gate.weight"))
    strange = {**given, router: np.full_like(given[router], 0x7FC0)}  # its logits are NaN
    assert np.isnan(logits_of(flag(graph), program, strange)).all()
    idle = {**given, "count": np.zeros(1, np.int32), "logit_count": np.zeros(1, np.int32)}
    assert np.isnan(logits_of(flag(graph), program, idle)).all()  # as poisoned: nothing was written


# One lane's store each, in what several roles await: who stores it, and who waits for it.
STORES = (
    ("mk_store(a.act + int64_t(pair[i]) * a.n + column,", "column == 7", "down", "act", "up"),
    (
        "mk_store(a.y + int64_t(pair[i]) * a.n + column,",
        "column == 20",
        "combine",
        "expert_out",
        "down",
    ),
    ("mk_store(reinterpret_cast<mk_word2*>(a.slots) +", "slot == 1", "down", "slots", "topk"),
    ("mk_store(a.weights + (out + i),", "i == 1", "combine", "chosen_weights", "topk"),
    ("mk_store(reinterpret_cast<mk_float4*>(out + n[k]),", "n[k] == 8", "", "x", "combine"),
    (
        "mk_store(a.y + at + int64_t(i) * a.n,",
        "p.column == 5 && a.n == 8",
        "topk",
        "router",
        "router",
    ),
)


def test_a_word_that_nobody_writes_is_named(programs: dict[str, CudaProgram]) -> None:
    """The first waiting record in program order is the cause, whichever lane of whichever role it
    is that waits; and the next step is right."""
    graph, given = step_of("cohere2_moe", 1)
    text = programs["flagged, one row"].source
    for number, (store, when, *_) in enumerate(STORES):
        assert text.count(store) == 1, store
        text = text.replace(store, f"if (mk_lost != {number} || !({when})) {store}")
    program = replace(
        programs["flagged, one row"], source='extern "C" { int mk_lost = -1; }\n' + text
    )
    for workers in (1, 3):
        schedule = deal(flag(graph), workers, "strided")
        machine = HostMachine(program, schedule, {n: a.copy() for n, a in given.items()})
        lost = ctypes.c_int.in_dll(machine.library, "mk_lost")
        machine.step()
        want = machine.tensors["logits"].copy()
        for number, (*_, reader, name, writer) in enumerate(STORES):
            for machine.seed in range(2):
                lost.value = number
                with pytest.raises(Stuck) as caught:
                    machine.step()
                causes = str(caught.value).splitlines()[1:]
                first = [line for line in causes if line.split(")")[0] == causes[0].split(")")[0]]
                said = rf"{reader}.*waits for words of {name}\w*\.\d, which .*{writer}"
                assert any(re.search(said, line) for line in first), (number, causes)
                lost.value = -1
                machine.step()
                assert same(machine.tensors["logits"], want)


def test_who_does_not_await_reads_what_is_not_there(programs: dict[str, CudaProgram]) -> None:
    graph, given = step_of("cohere2_moe", 1)
    want = logits_of(graph, programs["counters"], given)
    program = programs["flagged, one row"]
    wait = "  } while (wait.again(late));\n}"
    assert program.source.count(wait) == 1
    hasty = replace(program, source=program.source.replace(wait, "  } while (false);\n}"))
    assert not same(logits_of(flag(graph), hasty, given), want)


def test_a_program_that_awaits_nothing_is_refused(programs: dict[str, CudaProgram]) -> None:
    graph, given = step_of("llama", 1)
    with pytest.raises(ValueError, match="was not composed to await"):
        logits_of(flag(graph), programs["counters"], given)


def test_wide_steps_await_nothing() -> None:
    with pytest.raises(UserError, match="9 rows with flagged scratch; .* up to 8 rows"):
        compose_cuda(OPS, "bf16", "bf16", 9, flagged=True)
