"""Layers of experts of odd shapes with flagged scratch in the host build: whoever has which tiles,
in whatever order, the bits are those of one worker with counters, which multiplied what it says."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare.case import from_bf16
from mkport.library import find_op
from mkport.machines.cpu.machine import Stuck
from mkport.machines.host.machine import HostMachine
from mkport.plan import Graph, deal, flag
from mkport.plan.deal import Share
from mkport.plan.depend import JOIN
from mkport.verify import verify
from tests.kernels import moe_chain
from tests.kernels.moe_chain import Arrays, Sizes

OPS = (*(find_op(name) for name in moe_chain.OPS), JOIN)
DEALS: tuple[tuple[int, Share], ...] = ((1, "strided"), (2, "strided"), (5, "blocks"))


@cache
def program(rows: int) -> CudaProgram:
    return compose_cuda(OPS, "bf16", "bf16", rows, flagged=True)


def graph_of(s: Sizes) -> Graph:
    """The chain, whose workers may choose the experts by themselves."""
    made, given = Graph(OPS), moe_chain.chain(s, OPS)
    made.tensors = given.tensors
    for node in given.nodes:
        more = {"z": "z", "experts": s.experts} if node.op.name == "moe_up" else {}
        made.add(node.op, node.label, **(node.args | more))
    return made


def stepped(s: Sizes, graph: Graph, given: Arrays, workers: int, share: Share) -> Arrays:
    schedule = deal(graph, workers, share)
    verify(schedule)
    arrays = {name: array.copy() for name, array in given.items()}
    machine = HostMachine(
        program(s.tokens), schedule, arrays, seed=workers, first_step=2**31 - workers
    )
    machine.poison()
    for _ in range(2):  # over the counters' sign, for some
        machine.step()
    return machine.tensors


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


@dataclass(frozen=True)
class Case:
    sizes: Sizes
    fault: str = ""  # what is strange in the step
    deals: int = len(DEALS)


SMALL = Sizes(tokens=1, experts=8, top=2, hidden=64, ffn=48, at_once=True)
CASES = {
    "more experts than fit a stage buffer": Case(replace(SMALL, top=12, experts=20)),
    "more slots than a loader's lanes know": Case(
        replace(SMALL, top=70, experts=128, hidden=32, ffn=16)
    ),
    "more experts than a loader chooses from": Case(replace(SMALL, experts=160, top=3)),
    "one expert, and columns of two slices": Case(
        replace(SMALL, top=1, hidden=2064, ffn=16), "", 2
    ),
    "all experts, all alike": Case(replace(SMALL, experts=3, top=3, softmax=True), "alike"),
    "two rows, one idle": Case(replace(SMALL, tokens=2), "idle"),
    "two rows, one whose logits are no numbers": Case(replace(SMALL, tokens=2, top=3), "nan"),
    "two rows, a group's own op": Case(replace(SMALL, tokens=2, at_once=False, layers=2)),
    "two rows, many slots": Case(replace(SMALL, tokens=2, top=40, experts=90, hidden=32)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_one_worker_with_counters(name: str) -> None:
    case, s = CASES[name], CASES[name].sizes
    given = moe_chain.random_arrays(s, np.random.default_rng(3), s.tokens - (case.fault == "idle"))
    if case.fault == "alike":
        given["router0"][:] = 0
    if case.fault == "nan":
        given["x"][-1] = np.nan
    graph = graph_of(s)
    done = stepped(s, graph, given, 1, "strided")
    for workers, share in DEALS[: case.deals]:
        x = stepped(s, flag(graph), given, workers, share)["x"]
        assert same(x, done["x"]), (workers, share)
    experts = from_bf16(given[f"down{s.layers - 1}"]).astype(np.float64)
    slots, pairs = done["slots"], done["pairs"]
    used = int((slots[:-1, 0] >= 0).sum())
    assert slots[-1, 1] == s.top * int(np.isfinite(done["x"]).all(axis=1).sum())
    for (expert, first), (_, end) in zip(slots[:used], slots[1 : used + 1], strict=True):
        want = done["act"][first:end] @ experts[expert].T
        np.testing.assert_allclose(done["y"][pairs[first:end]], want, rtol=0.05, atol=0.05)


def test_a_loader_whose_lanes_disagree_gives_up() -> None:
    """Lanes await slots behind the 64th, each its own: when one is never written, all leave."""
    s = CASES["more slots than a loader's lanes know"].sizes
    given = moe_chain.random_arrays(s, np.random.default_rng(3), 1)
    store = "mk_store(reinterpret_cast<mk_word2*>(a.slots) +"
    text = program(1).source
    assert text.count(store) == 1
    mute = replace(program(1), source=text.replace(store, "if (slot != 66) " + store))
    machine = HostMachine(mute, deal(flag(graph_of(s)), 2, "strided"), given)
    for machine.seed in range(3):
        with pytest.raises(Stuck, match=r"up .* waits for words of slots.0, which .* topk writes"):
            machine.step()
