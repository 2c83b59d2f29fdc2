"""The choice of a layer's experts groups the tokens by expert: in which steps, and that it changes
no bit of one."""

from dataclasses import replace

import numpy as np
import pytest

from mkport.compose import Program
from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.kernels.moe_group.op import OP as MOE_GROUP
from mkport.machines.host.build import compiler
from mkport.models import family_of, parse_config
from mkport.models.sizes import TINY
from mkport.plan import Graph
from mkport.testing import tiny
from mkport.testing.step import run_step

FAMILIES = [name for name in TINY if name == "mixtral" or name.endswith("_moe")]
LISTS = ("pairs", "slots", "slot_count")


def built(family: str, rows: int = tiny.SHAPE.rows) -> Graph:
    """The step of a family's tiny model."""
    config = TINY[family] | {"vocab_size": tiny.LLAMA.vocab}
    step = family_of(config).build(parse_config(config), replace(tiny.SHAPE, rows=rows))
    return step.within(tiny.library())


def apart(graph: Graph) -> Graph:
    """The same step with each grouping as a node of its own."""
    found = Graph(tiny.library())
    found.tensors = dict(graph.tensors)
    for node in graph.nodes:
        args, lists = dict(node.args), {}
        if node.op.name == "topk":
            lists = {name: args[name] for name in LISTS}
            args |= {"pairs": None, "slots": None, "slot_count": 0}
        found.add(node.op, node.label, **args)
        if lists:
            shared = {name: args[name] for name in ("count", "ids", "experts", "k")}
            found.add(MOE_GROUP, f"{node.label}, group", **shared, **lists)
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [1, 8, 9])
def test_a_step_of_few_rows_has_one_op_for_both(family: str, rows: int) -> None:
    nodes = built(family, rows).nodes
    choices = [node for node in nodes if node.op.name == "topk"]
    groupings = [node for node in nodes if node.op.name == "moe_group"]
    assert choices and len(groupings) == (0 if rows <= 8 else len(choices))
    for node in choices:
        assert (node.args["slots"] is None) == (rows > 8)
        assert node.tiles == (1 if rows <= 8 else rows)


HOST = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")


@pytest.mark.parametrize(
    ("family", "machine"),
    [
        *((family, "cpu") for family in FAMILIES),
        pytest.param("qwen3_moe", "host", marks=HOST),
        pytest.param("cohere2_moe", "host", marks=[HOST, pytest.mark.slow]),
        pytest.param("mixtral", "host", marks=[HOST, pytest.mark.slow]),
    ],
)
def test_a_choice_that_groups_changes_no_bit(family: str, machine: str) -> None:
    whole = built(family)
    given = tiny.fill(whole, tiny.SHAPE, np.random.default_rng(5))
    steps = (whole, apart(whole))
    program: Program | CudaProgram = tiny.program("bf16")
    if machine == "host":
        ops = dict.fromkeys(node.op for step in steps for node in step.nodes)
        program = compose_cuda(list(ops), "bf16", "bf16")
    found = [run_step(step.within(program.ops), program, machine, given, 3, 1) for step in steps]
    for name in ("x", "chosen", "slots", "logits", "next"):
        assert found[0][name].tobytes() == found[1][name].tobytes(), name
    assert np.isfinite(found[0]["logits"][:3]).all()
