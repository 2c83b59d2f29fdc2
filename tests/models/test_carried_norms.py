"""The sum of a layer's experts norms the next layer's input: which sums do, and that it changes no
bit of a step."""

import numpy as np
import pytest

from mkport.compose import Program
from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.machines.host.build import compiler
from mkport.models import family_of, parse_config
from mkport.models.sizes import TINY
from mkport.models.step import Norm, Step
from mkport.plan import Graph
from mkport.testing import tiny
from mkport.testing.step import run_step

CARRIED = {
    "cohere2_moe": ["layer 1", "layer 2", "layer 3"],  # layer 0 is dense, layer 4 is the last
    "mixtral": ["layer 0"],
    "qwen3_moe": ["layer 0"],
}


def built(family: str, **more: object) -> Graph:
    """The step of a family's tiny model, with some fields of its config changed."""
    config = TINY[family] | {"vocab_size": tiny.LLAMA.vocab} | more
    return family_of(config).build(parse_config(config), tiny.SHAPE).within(tiny.library())


def carrying(graph: Graph) -> list[str]:
    """The layers whose sum of experts carries a norm."""
    return [
        node.label.split(" / ")[0]
        for node in graph.nodes
        if node.op.name == "moe_combine" and node.args["w"] is not None
    ]


def apart(graph: Graph) -> Graph:
    """The same step with each carried norm as a node of its own."""
    step = Step(tiny.SHAPE, graph.tensors["x"].shape[1])
    step.graph = Graph(tiny.library())
    step.graph.tensors = dict(graph.tensors)
    for node in graph.nodes:
        args = dict(node.args)
        weight = args["w"] if node.op.name == "moe_combine" else None
        if weight is not None:
            args |= {"w": None, "h": None}
        step.graph.add(node.op, node.label, **args)
        if weight is not None:
            step.norm(f"{node.label}, norm", weight, Norm(args["eps"], bool(args["mean"])))
    return step.graph


@pytest.mark.parametrize("family", TINY)
def test_the_last_thing_that_writes_x_carries_the_norm(family: str) -> None:
    graph = built(family)
    assert carrying(graph) == CARRIED.get(family, [])
    layers = [f"layer {i}" for i in range(TINY[family]["num_hidden_layers"])]
    normed = [n.label.split(" / ")[0] for n in graph.nodes if n.label.endswith(" / norm")]
    before = {f"layer {int(layer.split()[1]) + 1}" for layer in carrying(graph)}
    assert sorted([*normed, *before]) == layers


def test_shared_experts_write_x_later() -> None:
    assert carrying(built("cohere2_moe", num_shared_experts=1)) == []


HOST = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")


@pytest.mark.parametrize(
    ("family", "mean", "machine"),
    [
        *((family, False, "cpu") for family in CARRIED),
        ("cohere2_moe", True, "cpu"),
        pytest.param("cohere2_moe", False, "host", marks=HOST),
        pytest.param("cohere2_moe", True, "host", marks=[HOST, pytest.mark.slow]),
        pytest.param("qwen3_moe", False, "host", marks=[HOST, pytest.mark.slow]),
        pytest.param("mixtral", False, "host", marks=[HOST, pytest.mark.slow]),
    ],
)
def test_a_carried_norm_changes_no_bit(family: str, mean: bool, machine: str) -> None:
    whole = built(family, **({"rms_norm_eps": None} if mean else {}))
    given = tiny.fill(whole, tiny.SHAPE, np.random.default_rng(5))
    steps = (whole, apart(whole))
    program: Program | CudaProgram = tiny.program("bf16")
    if machine == "host":
        ops = dict.fromkeys(node.op for step in steps for node in step.nodes)
        program = compose_cuda(list(ops), "bf16", "bf16")
    found = [run_step(step.within(program.ops), program, machine, given, 3, 1) for step in steps]
    for name in ("x", "h", "logits", "next"):
        assert found[0][name].tobytes() == found[1][name].tobytes(), name
    assert np.isfinite(found[0]["logits"][:3]).all()
