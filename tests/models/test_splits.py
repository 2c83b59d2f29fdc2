"""Layers with a window keep the partial sums of the splits that it can touch, and of no others."""

from dataclasses import replace

import numpy as np
import pytest

from mkport.compose.cuda import compose_cuda
from mkport.kernels.attention.op import SPLIT, splits_kept
from mkport.machines.host.build import compiler
from mkport.models import step
from mkport.models.step import FULL_TABLE, WINDOW_TABLE, StepShape
from mkport.plan import Graph, deal
from mkport.testing import tiny
from mkport.testing.step import run_step
from mkport.verify import Refused, verify
from mkport.verify.arguments import argument_problems

# five splits of 512 keys, of which the tiny models' window of 24 touches one or two
SHAPE = replace(tiny.SHAPE, context=2200)
FAMILY = "cohere2"
# before, at and behind edges of splits; two sequences have several tokens in the step
PLACES = [(0, 1535), (1, 1030), (1, 1031), (2, 534), (2, 535), (0, 1536)]
NEAR_PLACES = [(0, 511), (1, 0), (1, 1), (2, 254), (2, 255), (0, 510)]


@pytest.mark.parametrize("window", [1, 2, 3, 511, 512, 513, 514, 1024, 1025, 1026, 4096])
def test_places_for_the_splits_of_a_window_wherever_it_is(window: int) -> None:
    last = np.arange(8 * SPLIT)  # positions of a token
    touched = last // SPLIT - np.maximum(last - window + 1, 0) // SPLIT + 1
    assert splits_kept(8 * SPLIT, window) == min(touched.max(), 8)
    assert splits_kept(8 * SPLIT + 1, 0) == 9


def test_each_kind_of_layer_has_its_own_partial_sums() -> None:
    graph = tiny.graphs(SHAPE)[FAMILY]
    seen = {
        (bool(node.args["window"]), node.args["splits"], node.args["partial"])
        for node in graph.nodes
        if node.op.name in ("attention", "attention_combine")
    }
    assert seen == {(False, 5, "partial"), (True, 2, "partial2")}
    assert graph.tensors["partial2"].shape[1] == 2
    verify(deal(graph, 3))


def test_one_place_less_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "splits_kept", lambda context, window: 1 if window else 5)
    graph = tiny.graphs(SHAPE)[FAMILY]
    assert argument_problems(graph)
    with pytest.raises(Refused, match="positions of rows: 1 to 512 here"):
        verify(deal(graph, 3))


@pytest.mark.parametrize("machine", ["cpu", "host"])
def test_a_step_has_the_bits_that_it_has_with_a_place_for_every_split(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if machine == "host" and compiler() is None:
        pytest.skip("no C++ compiler for the host build")
    logits = []
    for every in (False, True):
        if every:
            monkeypatch.setattr(step, "splits_kept", lambda context, window: -(-context // SPLIT))
        graph = tiny.graphs(SHAPE)[FAMILY]
        splits = {node.args["splits"] for node in graph.nodes if node.op.name == "attention"}
        assert splits == ({5} if every else {2, 5})
        logits.append(_logits(graph, machine))
    assert np.isfinite(logits[0]).all()
    assert logits[0].tobytes() == logits[1].tobytes()


@pytest.mark.parametrize("machine", ["cpu", "host"])
@pytest.mark.parametrize("family", ["llama", "cohere2"])
def test_where_the_context_is_one_split_attention_needs_no_join_and_has_the_same_bits(
    machine: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if machine == "host" and compiler() is None:
        pytest.skip("no C++ compiler for the host build")
    shape = replace(tiny.SHAPE, context=SPLIT)
    logits = []
    for joined in (False, True):
        if joined:  # as if there were a second split, which nobody sees
            monkeypatch.setattr(step, "splits_kept", lambda context, window: 2)
        graph = tiny.graphs(shape)[family]
        ops = {node.op.name for node in graph.nodes}
        assert ("attention_combine" in ops) == joined and ("partial" in graph.tensors) == joined
        verify(deal(graph, 3))
        logits.append(_logits(graph, machine, shape, NEAR_PLACES))
    assert np.isfinite(logits[0]).all()
    assert logits[0].tobytes() == logits[1].tobytes()


def _logits(
    graph: Graph,
    machine: str,
    shape: StepShape = SHAPE,
    places: list[tuple[int, int]] = PLACES,
) -> np.ndarray:
    """The logits [rows, vocab] of a step at `places`, with pages that no token sees full of NaN."""
    given = tiny.fill(graph, shape, np.random.default_rng(0))
    given |= {"rows": np.array(places, np.int32), "count": np.array([len(places)], np.int32)}
    rows = np.array([0, 2, 4, 5], np.int32)
    given |= {"logit_rows": rows, "logit_count": np.array([len(rows)], np.int32)}
    window = next((node.args["window"] for node in graph.nodes if node.args.get("window")), 0)
    for table, sees in ((FULL_TABLE, 0), (WINDOW_TABLE, window)):
        if table not in given:
            continue
        seen = np.zeros(given[table].shape, bool)
        for sequence, last in places:
            first = max(last - sees + 1, 0) if sees else 0
            seen[sequence, first // shape.page : last // shape.page + 1] = True
        for name in {
            node.args[pages]
            for node in graph.nodes
            if node.op.name == "attention" and node.args["page_table"] == table
            for pages in ("k_pages", "v_pages")
        }:
            given[name][given[table][~seen]] = 0x7FC0  # NaN
    program = tiny.program("bf16") if machine == "cpu" else compose_cuda(graph.ops, "bf16", "bf16")
    return run_step(graph, program, machine, given, workers=3, seed=1)["logits"]
