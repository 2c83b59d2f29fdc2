"""Layers with a window have a pool and a page table of their own, and never read what left it."""

import numpy as np
import pytest

from mkport.kernels.attention.oracle import make
from mkport.machines.cpu.machine import CpuMachine
from mkport.models import family_of, parse_config
from mkport.models.sizes import TINY
from mkport.models.step import FULL_TABLE, WINDOW_TABLE, StepShape
from mkport.plan import deal
from mkport.testing import tiny
from mkport.verify import verify

SHAPE = StepShape(rows=3, context=320, sequences=2, page=16, pages=31, window_pages=9)
WINDOW = 24  # of the tiny models


@pytest.mark.parametrize("family", TINY)
def test_each_kind_of_layer_follows_its_own_table(family: str) -> None:
    fields = TINY[family]
    graph = family_of(fields).build(parse_config(fields), SHAPE)
    kinds = set()
    for node in graph.nodes:
        cache = node.args.get("k_pages") or node.args.get("pages")
        if cache is None:
            continue
        layer = int(cache.split(".")[1])
        window = next(
            n.args["window"] for n in graph.nodes if n.label == f"layer {layer} / attention"
        )
        kinds.add(bool(window))
        assert node.args["page_table"] == (WINDOW_TABLE if window else FULL_TABLE)
        assert graph.tensors[cache].shape[0] == (9 if window else 31)
    assert kinds == ({True, False} if family.startswith("cohere2") else {False})
    assert (WINDOW_TABLE in graph.tensors) == (True in kinds)
    verify(deal(graph, 2))


def test_the_entry_of_a_page_that_left_the_window_is_not_followed() -> None:
    """Such an entry leads far out of memory, so following it could not go unnoticed."""
    fields = TINY["cohere2"] | {"vocab_size": tiny.LLAMA.vocab}
    graph = family_of(fields).build(parse_config(fields), SHAPE).within(tiny.library())
    arrays = tiny.fill(
        graph, StepShape(rows=3, context=320, sequences=2, page=16), np.random.default_rng(0)
    )
    for name, spec in graph.tensors.items():
        if spec.kind == "state":
            arrays[name] = np.ascontiguousarray(arrays[name][: spec.shape[0]])
    positions = [(0, 100), (0, 101), (1, 40)]
    arrays |= {"rows": np.array(positions, np.int32), "count": np.array([3], np.int32)}
    arrays |= {"logit_rows": np.array([2], np.int32), "logit_count": np.array([1], np.int32)}
    arrays[FULL_TABLE] = np.arange(40, dtype=np.int32).reshape(2, 20) % 31
    table = np.full((2, 20), 2**31 - 1, np.int32)
    for sequence, position in positions:
        first, last = (position - WINDOW + 1) // 16, position // 16
        table[sequence, first : last + 1] = [(4 * sequence + p) % 9 for p in range(first, last + 1)]
    arrays[WINDOW_TABLE] = table
    with CpuMachine(tiny.program("bf16"), deal(graph, 2), arrays) as machine:
        machine.step()
        assert np.isfinite(machine.tensors["logits"]).all()


@pytest.mark.parametrize("window", [16, 17, 40])
def test_the_oracle_reads_the_same_pages(window: int) -> None:
    """What the checks of attention call unseen is what the planner of pages may give away."""
    case = make(np.random.default_rng(0), "bf16", "bf16", [(0, 100)], 2, 1, 16, 16, window=window)
    used = np.flatnonzero(case.arrays["page_table"][0])
    assert used.tolist() == list(range((100 - window + 1) // 16, 100 // 16 + 1))
