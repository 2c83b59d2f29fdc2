"""Arguments that do not fit their tensors are refused by name; every family's own are accepted."""

import time
from dataclasses import replace
from typing import Any

import pytest

from mkport.declare import TensorSpec
from mkport.models.sizes import TINY
from mkport.models.step import StepShape
from mkport.plan import Graph, Schedule, deal
from mkport.testing import tiny
from mkport.verify import Refused, verify
from mkport.verify.arguments import argument_problems

SHAPES = {
    "several sequences": tiny.SHAPE,
    "one token": StepShape(rows=1, context=320),
    "a page for all": StepShape(rows=2, context=10, page=512),
    "a split more than pages": StepShape(rows=2, context=257, page=512, logits=2),
    "a small pool": StepShape(rows=3, context=1000, page=48, sequences=3, pages=9, cache="f32"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_familys_arguments_fit(shape: str) -> None:
    for graph in tiny.graphs(SHAPES[shape]).values():
        assert argument_problems(graph) == {}


def test_too_few_splits_for_the_context_are_refused() -> None:
    partial = {"shape": (6, 1, 6, 48), "logical": (6, 1, 6)}
    args = {"splits": 1, "split_step": 1}
    said = _refusal(_edited("llama", "attention", args, {"partial": partial}))
    assert "positions of rows: 1 to 512 here, but 640 in layer 0 / k_proj" in said


def test_attention_writes_sums_or_the_output_of_one_split() -> None:
    y = {"y": "attended", "partial": None}
    assert "y takes the output of one split, but splits is 2" in _refusal(
        _edited("llama", "attention", y)
    )
    for both in ({"y": "attended"}, {"partial": None}):
        said = _refusal(_edited("llama", "attention", both))
        assert "one of partial and y takes the output: give one of them" in said
    one = StepShape(rows=2, context=320)
    assert argument_problems(tiny.graphs(one)["llama"]) == {}
    assert "y is [2, 192], not [2, heads * head_dim = 96]" in _refusal(
        _edited("llama", "attention", {"heads": 3, "kv_heads": 1}, shape=one)
    )


def test_the_check_is_quick() -> None:
    graph = tiny.graphs(tiny.SHAPE)["cohere2_moe"]
    began = time.perf_counter()
    argument_problems(graph)
    assert time.perf_counter() - began < 0.2  # about 2 ms for 66 nodes


def _edited(
    family: str,
    op: str,
    args: dict[str, Any],
    tensors: dict[str, dict[str, Any]] | None = None,
    shape: StepShape = tiny.SHAPE,
) -> Graph:
    """A family's step whose first node of an op has other arguments, and its tensors other shapes.

    `tensors` holds fields of `TensorSpec` by argument name.
    """
    found = tiny.graphs(shape)[family]
    graph = Graph(found.ops)
    graph.tensors = dict(found.tensors)
    at = next(n for n, node in enumerate(found.nodes) if node.op.name == op)
    for arg, fields in (tensors or {}).items():
        name = found.nodes[at].args[arg]
        graph.tensors[name] = replace(graph.tensors[name], **fields)
    for n, node in enumerate(found.nodes):
        graph.add(node.op, node.label, **(node.args | (args if n == at else {})))
    return graph


def _refusal(graph: Graph) -> str:
    """All that is said against a graph's arguments."""
    with pytest.raises(Refused) as caught:
        verify(Schedule(graph, (), 0))
    first = next(p for p in caught.value.problems if p.kind == "argument")
    assert first.message in str(caught.value)
    return "\n".join(p.message for p in caught.value.problems if p.kind == "argument")


# family, op, arguments, tensors, what the refusal says
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, dict[str, Any]], str]] = {
    "narrow rows": ("llama", "embed", {"k": 24}, {}, "k is 24, not a multiple of 16"),
    "wide page table": (
        "llama", "gemm_rope", {"pages_per_sequence": 10**8}, {},
        "positions of rows: 640 here, but at least 1599999985",
    ),
    "wide page table of attention": (
        "llama", "attention", {"pages_per_sequence": 10**8}, {},
        "page_table is [3, 40], not [any, pages_per_sequence = 100000000]",
    ),
    "count of other integers": (
        "llama", "gemm", {"count": "tokens"}, {}, "count is [6], not [1]",
    ),
    "count of more rows": (
        "llama", "argmax", {"count": "count"}, {},
        "rows of count: 4 here, but 6 in embed",
    ),
    "small cache": (
        "llama", "attention", {}, {"k_pages": {"shape": (1, 1, 1, 16)}},
        "k_pages is [1, 1, 1, 16], not [any, kv_heads = 2, page = 16, head_dim = 32]",
    ),
    "caches of two sizes": (
        "llama", "attention", {}, {"k_pages": {"shape": (3, 2, 16, 32)}},
        "k_pages is [3, 2, 16, 32], but v_pages is [120, 2, 16, 32]",
    ),
    "wide page": (
        "llama", "attention", {"page": 4096}, {},
        "k_pages is [120, 2, 16, 32], not [any, kv_heads = 2, page = 4096, head_dim = 32]",
    ),
    "page of one key": (
        "llama", "attention", {"page": 1}, {}, "page is 1, not a multiple of 16",
    ),
    "two windows": (
        "llama", "attention", {"window": 1}, {},
        "layer 0 / combine: the arguments of op attention_combine do not fit: window of partial: "
        "0 here, but 1 in layer 0 / attention",
    ),
    "negative window": (
        "llama", "attention", {"window": -1}, {}, "window is -1, not 0 or more",
    ),
    "pairs": (
        "mixtral", "topk", {}, {"pairs": {"shape": (1,), "logical": (1,)}},
        "pairs is [1], not [12]",
    ),
    "pairs without slots": (
        "mixtral", "topk", {"slots": None}, {}, "pairs is given and slots is not",
    ),
    "slots without pairs": (
        "mixtral", "topk", {"pairs": None}, {}, "pairs is absent and slots is not",
    ),
    "slots that are not there": (
        "mixtral", "topk", {"slots": None, "pairs": None}, {}, "slot_count is 8, not 0 to 0",
    ),
    "more experts than a choice can name": (
        "mixtral", "topk", {"experts": 40000}, {}, "experts is 40000, not 1 to 32766",
    ),
    "few slots": ("mixtral", "topk", {"slot_count": 7}, {}, "slot_count is 7, not 8 or more"),
    "few experts": ("mixtral", "topk", {"experts": 1}, {}, "k is 2, not 1 to 1"),
    "experts that are not there": (
        "mixtral", "moe_up", {}, {"w_gate": {"shape": (7, 192, 64), "logical": (7, 192, 64)}},
        "experts of slots: 7 here, but 8 in layer 0",
    ),
    "one expert a token": (
        "mixtral", "moe_up", {"top": 1}, {}, "pairs is [12], not [6]",
    ),
    "choices for slots": (
        "mixtral", "moe_up", {"slots": "chosen"}, {},
        "slots is chosen, which is layer 0 / topk's ids",
    ),
    "step back": ("mixtral", "moe_up", {"slot_step": -3}, {}, "slot_step is -3, not 1 to 7"),
    "step of a divisor": (
        "mixtral", "moe_down", {"slot_step": 2}, {},
        "slot_step is 2, which has a divisor of slot_count = 8",
    ),
    "narrow product": (
        "llama", "gemm_silu", {"k": 32}, {}, "x is [6, 64], not [6, k = 32]",
    ),
    "few columns": ("llama", "argmax", {"n": 16}, {}, "x is [4, 77], not [4, n = 16]"),
    "heads": ("llama", "attention", {"heads": 7}, {}, "heads is 7, not a multiple of 2"),
    "no heads": ("llama", "attention_combine", {"heads": 0}, {}, "heads is 0, not positive"),
    "coordinates": (
        "llama", "rmsnorm", {}, {"y": {"shape": (6, 16)}},
        "y is [6, 16], not [6, groups * k = 64]",
    ),
    "logical shape": (
        "llama", "embed", {}, {"y": {"logical": (6, 4096)}},
        "y has the logical shape [6, 4096], not [6, k = 64]",
    ),
    "neither": ("llama", "gemm_rope", {"y": None, "pages": None}, {}, "y and pages are absent"),
    "storage type": (
        "llama", "embed", {}, {"y": {"dtype": "bf16"}}, "y is the bf16 tensor x, not f32",
    ),
    "absent": ("llama", "embed", {"table": None}, {}, "table is absent"),
}  # fmt: skip


WIDE = {  # steps of so many rows group their pairs by an op of its own
    "few experts to group": ({"experts": 1}, {}, "k is 2, not 1 to 1"),
    "experts to group that are not there": (
        {"experts": 7}, {}, "experts of chosen: 7 here, but 8 in layer 0",
    ),
    "pairs to group": (
        {}, {"pairs": {"shape": (1,), "logical": (1,)}}, "pairs is [1], not [18]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WIDE)
def test_arguments_of_a_wide_step_that_do_not_fit(case: str) -> None:
    args, tensors, words = WIDE[case]
    shape = replace(tiny.SHAPE, rows=9)
    assert words in _refusal(_edited("mixtral", "moe_group", args, tensors, shape))


def test_only_few_tokens_are_grouped_as_they_are_chosen() -> None:
    lists = {"pairs": "pairs", "slots": "slots", "slot_count": 8}
    said = _refusal(_edited("mixtral", "topk", lists, {}, replace(tiny.SHAPE, rows=9)))
    assert "the pairs of 9 tokens are grouped, not of 1 to 8" in said


@pytest.mark.parametrize("case", CASES)
def test_arguments_that_do_not_fit(case: str) -> None:
    family, op, args, tensors, words = CASES[case]
    assert words in _refusal(_edited(family, op, args, tensors))


def test_the_refusal_names_the_node() -> None:
    assert _refusal(_edited("llama", "embed", {"k": 24})).splitlines()[0] == (
        "embed: the arguments of op embed do not fit: k is 24, not a multiple of 16. Correct the "
        "node's arguments or the tensor."
    )


def test_an_input_of_one_number_is_no_count_for_another_use() -> None:
    """With one row the token ids have the shape of a count, but not its range."""
    graph = tiny.graphs(StepShape(rows=1, context=320))["llama"]
    head = next(node for node in graph.nodes if node.label == "lm_head")
    graph.nodes[graph.nodes.index(head)] = Graph.add(
        graph, head.op, "head", **(head.args | {"count": "tokens"})
    )
    graph.nodes.pop()
    assert "count is tokens, which is embed's tokens" in _refusal(graph)


@pytest.mark.parametrize("family", ["llama", *TINY])
def test_each_number_and_each_shape_is_checked(family: str) -> None:
    """No integer that an address is made of, and no shape, can be another one unnoticed."""
    found = tiny.graphs(tiny.SHAPE)[family]
    for node in {node.op.name: node for node in found.nodes}.values():
        for arg in node.op.args:
            if arg.kind == "int" and arg.name not in FREE:
                graph = found.first(len(found.nodes))
                graph.nodes = list(found.nodes)
                changed = dict(node.args) | {arg.name: node.args[arg.name] + 16}
                bound = node.op.bind(changed, found.tensors)
                at = found.nodes.index(node)
                graph.nodes[at] = replace(node, args=changed, bound=bound)
                assert argument_problems(graph), f"{node.label}: {arg.name}"
            spec = found.tensors.get(node.args[arg.name]) if arg.kind == "tensor" else None
            if spec is not None:
                specs = dict(found.tensors)
                specs[spec.name] = TensorSpec(
                    spec.name, spec.dtype, (1, 1, 1, 1, 1), spec.kind, (1,)
                )
                assert argument_problems(_with_tensors(found, specs)), f"{node.label}: {arg.name}"


# Numbers that move no address: the step from slot to slot in a range that has other good ones, and
# the tokens of a tile.
FREE = ("slot_step", "block")


def _with_tensors(graph: Graph, specs: dict[str, TensorSpec]) -> Graph:
    changed = graph.first(0)
    changed.tensors = specs
    changed.nodes = [replace(node, bound=node.op.bind(node.args, specs)) for node in graph.nodes]
    return changed


def test_a_dealt_schedule_is_refused_too() -> None:
    with pytest.raises(Refused, match="k is 24, not a multiple of 16"):
        verify(deal(_edited("llama", "embed", {"k": 24}), 3))
