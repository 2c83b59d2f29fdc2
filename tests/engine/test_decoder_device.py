"""A decoder on the CUDA source: in the host build everywhere, on the GPU where there is one.

float32 tokens are the CPU machine's, so the fp32 oracle's; rows have their bits in any company; a
chain of steps that feed each other is the same as steps one by one.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare import RECORD
from mkport.engine import cuda_target as cuda_target_module
from mkport.engine import steps as steps_module
from mkport.engine import target as target_module
from mkport.engine.decoder import Decoder
from mkport.engine.evaluate import perplexity
from mkport.engine.load import LoadedModel, load
from mkport.engine.sampled import GREEDY, Draw
from mkport.engine.synth import synthesise
from mkport.errors import UserError
from mkport.machines.cpu.machine import Stuck
from mkport.machines.host.build import compiler
from mkport.models.sizes import TINY
from mkport.plan import Graph, Schedule, deal, is_flagged
from mkport.plan.deal import Share
from mkport.testing import tiny
from tests.engine.checkpoints import one_program

FAMILIES = sorted(TINY)
PROMPTS = ([5, 9, 200, 31, 7, 77, 8, 9, 10, 11], [3, 1, 4], [90])
DRAWS = (GREEDY, Draw(0.8, 7, 1), Draw(1.5, -3))
STEPS = 5


@cache
def library(weights: str, flagged: bool = False) -> CudaProgram:
    """One CUDA file of every op for steps of up to 8 rows: compiled once for all models."""
    ops = [op for op in tiny.library() if (op.folder / "task.cuh").is_file()]
    return compose_cuda(ops, weights, weights, flagged=flagged)


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A machine that runs the CUDA source; what is composed for it is always `library`."""
    if request.param == "host" and compiler() is None:
        pytest.skip("no C++ compiler for the host build")
    monkeypatch.setattr(target_module, "compose_cuda", lambda ops, weights, *rest: library(weights))
    monkeypatch.setattr(
        cuda_target_module,
        "compose_cuda_for",
        lambda graph, weights, *rest: library(weights, is_flagged(graph)),
    )
    with one_program():
        yield request.param


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the models' directories are made."""
    return tmp_path_factory.mktemp("models")


def model(written: Path, family: str, dtype: str = "f32") -> LoadedModel:
    """A tiny random model of a family; its experts are left in pieces."""
    out = written / f"{family}-{dtype}"
    if not out.exists():
        synthesise(family, "tiny", out, dtype, seed=3)
    return load(str(out), stack=False)


def decoded(decoder: Decoder, rows: Sequence[int]) -> tuple[np.ndarray, bytes]:
    """Tokens of some prompts, decoded side by side, and the bits of their last prompt logits."""
    starts, bits = [], b""
    for sequence, row in enumerate(rows):
        token, logits = decoder.prefill(sequence, PROMPTS[row], draw=DRAWS[row])
        starts.append((sequence, len(PROMPTS[row]), token))
        bits += logits.tobytes()
    draws = [DRAWS[row] for row in rows]
    chain = [chosen.copy() for chosen in decoder.follow(starts, STEPS, draws)]
    return np.array([[token for _, _, token in starts], *chain]).T, bits


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_tokens_are_the_cpu_machine_s(written: Path, family: str, on: str) -> None:
    given = model(written, family)
    with one_program(), Decoder(given, batch=3, context=64) as decoder:
        wanted, _ = decoded(decoder, range(3))
    with Decoder(given, on=on, batch=3, context=64) as decoder:
        found, _ = decoded(decoder, range(3))
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_row_is_the_same_alone_in_a_batch_and_step_by_step(
    written: Path, dtype: str, on: str
) -> None:
    given = model(written, "cohere2_moe", dtype)
    with Decoder(given, on=on, batch=3, context=64, widths=[1, 2]) as decoder:
        together, bits = decoded(decoder, range(3))
        alone = [decoded(decoder, [row]) for row in range(3)]
        assert [tokens[0].tolist() for tokens, _ in alone] == together.tolist()
        assert b"".join(part for _, part in alone) == bits
        token, _ = decoder.prefill(2, PROMPTS[1], draw=DRAWS[1])
        for step in range(STEPS):
            assert token == together[1, step]
            place = (2, len(PROMPTS[1]) + step, token)
            token = int(decoder.step([place], [0], draws=[DRAWS[1]])[0][0])
        assert token == together[1, STEPS]


def test_poisoned_scratch_changes_nothing_and_a_chain_may_be_left(written: Path, on: str) -> None:
    given = model(written, "cohere2_moe", "bf16")
    with Decoder(given, on=on, batch=3, context=64) as decoder:
        clean = decoded(decoder, range(3))
        for machine in decoder.machines:
            machine.poison()
        for chosen in decoder.follow([(0, 10, 4)], 20):
            assert len(chosen) == 1
            break
        again = decoded(decoder, range(3))
    assert again[0].tolist() == clean[0].tolist() and again[1] == clean[1]


def test_steps_beyond_the_context_are_refused(written: Path, on: str) -> None:
    with Decoder(model(written, "llama"), on=on, context=32) as decoder:
        with pytest.raises(UserError, match="32 steps reach position 32, .* 32 positions"):
            next(decoder.follow([(0, 1, 7)], 32))
        assert len(list(decoder.follow([(0, 1, 7)], 31))) == 31


def test_a_row_that_is_not_finite_chooses_nothing_and_harms_no_other(
    written: Path, on: str
) -> None:
    """The token it feeds itself must lead nowhere outside the embedding."""
    given = model(written, "llama", "bf16")
    with Decoder(given, on=on, batch=2, context=32) as decoder:
        wanted = [chosen.tolist() for chosen in decoder.follow([(0, 0, 7)], 4)]
        name = next(n for n in decoder.machine.tensors if n.startswith("cache.0.k"))
        cache = decoder.machine.tensors[name]
        cache[:] = 0
        cache[1] = 0x7FC0  # NaN in the page of the second sequence
        found = [chosen.tolist() for chosen in decoder.follow([(0, 0, 7), (1, 3, 7)], 4)]
    assert [[first] for first, _ in found] == wanted
    assert [second for _, second in found] == [-1] * 4


def test_many_runs_give_the_same_bits(written: Path, on: str) -> None:
    """In the host build each run interleaves its workers in another order."""
    given = model(written, "cohere2_moe", "bf16")
    seen = set()
    with Decoder(given, on=on, batch=3, context=64) as decoder:
        for _ in range(20 if on == "cuda" else 3):
            tokens, bits = decoded(decoder, range(3))
            seen.add((tokens.tobytes(), bits))
    assert len(seen) == 1


def test_perplexity_is_the_cpu_machine_s(written: Path, on: str) -> None:
    ids = [int(i) for i in np.random.default_rng(1).integers(0, 288, 70)]
    for dtype, off in (("f32", 1e-5), ("bf16", 1e-3)):
        given = model(written, "qwen3_moe", dtype)
        with one_program(), Decoder(given, context=32, all_logits=True) as decoder:
            wanted = perplexity(decoder, ids, 32)
        with Decoder(given, on=on, context=32, all_logits=True) as decoder:
            found = perplexity(decoder, ids, 32)
        assert abs(found.nll / wanted.nll - 1) < off


def test_a_lost_signal_ends_the_step_and_the_chain_in_the_stuck_frontier(
    written: Path, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: set[str] = set()  # the nodes that wait for it

    def broken(graph: Graph, workers: int, share: Share) -> Schedule:
        """The first counter that somebody waits for misses a record's signal."""
        schedule = deal(graph, workers, share)
        lists = [records.copy() for records in schedule.lists]
        node, waits, signal = (RECORD[name].first for name in ("node", "waits", "signal"))
        waiting = [r for records in lists for r in records if r[waits] >= 0]
        first = min(waiting, key=lambda record: int(record[node]))
        lost = next(r for records in lists for r in records if r[signal] == first[waits])
        lost[signal] = -1
        late.add(re.escape(schedule.graph.nodes[first[node]].label))
        return replace(schedule, lists=tuple(lists))

    monkeypatch.setattr(steps_module, "deal", broken)
    monkeypatch.setattr(steps_module, "verify", lambda schedule: None)
    with Decoder(model(written, "llama"), on=on, context=32) as decoder:
        for _ in range(2):
            with pytest.raises(Stuck) as caught:
                decoder.step([(0, 0, 7)], [0])
            told = rf"({'|'.join(late)}) .* waits for counter .* \d+ missing"
            assert re.search(told, str(caught.value)), caught.value
            with pytest.raises(Stuck, match=rf"({'|'.join(late)}) .* waits"):
                list(decoder.follow([(0, 0, 7)], 4))


def test_an_unknown_machine_is_refused(written: Path) -> None:
    with pytest.raises(UserError, match="no machine 'tpu'; the machines are cpu, cuda, host"):
        Decoder(model(written, "llama"), on="tpu")
