"""Products of a step of one row norm their inputs themselves on a GPU: which norms are folded into
them, and that it changes no bit of a step."""

import numpy as np
import pytest

from mkport.compose import Program
from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.compose.fixed import fixed_arguments
from mkport.machines.host.build import compiler
from mkport.models import family_of, parse_config
from mkport.models.sizes import TINY
from mkport.models.step import FULL_TABLE, WINDOW_TABLE, StepShape
from mkport.plan import Graph, flagged_for, is_flagged
from mkport.testing import tiny
from mkport.testing.step import run_step

SEQUENTIAL = ["llama", "qwen3", "mixtral", "qwen3_moe"]
STAGE = 1 << 16


def shape(stage: int, rows: int = 1, dtype: str = "bf16") -> StepShape:
    return StepShape(rows, context=320, page=16, weights=dtype, cache=dtype, stage=stage)


def built(family: str, shape: StepShape) -> Graph:
    """The step of a family's tiny model."""
    config = TINY[family] | {"vocab_size": tiny.LLAMA.vocab}
    return family_of(config).build(parse_config(config), shape).within(tiny.library())


def norms(graph: Graph) -> list[str]:
    return [node.label for node in graph.nodes if node.op.name in ("rmsnorm", "layernorm")]


@pytest.mark.parametrize("family", SEQUENTIAL)
def test_what_only_products_read_is_normed_by_them(family: str) -> None:
    graph = built(family, shape(STAGE))
    assert norms(graph) == []
    assert "select" not in {node.op.name for node in graph.nodes}


@pytest.mark.parametrize("family", TINY)
def test_more_rows_and_cpus_have_nodes_for_them(family: str) -> None:
    for graph in (built(family, shape(0)), built(family, shape(STAGE, rows=2))):
        assert not any(node.args.get("norm_w") for node in graph.nodes)
        assert len(norms(graph)) > 1


def inputs(graph: Graph) -> dict[str, np.ndarray]:
    """A token at position 300."""
    one = np.ones(1, np.int32)
    tables = {name for name in (FULL_TABLE, WINDOW_TABLE) if name in graph.tensors}
    pages = dict.fromkeys(tables, np.arange(20, dtype=np.int32)[None])
    places = {"rows": np.array([[0, 300]], np.int32), "logit_rows": one - 1}
    return {"count": one, "logit_count": one, "tokens": 7 * one, **places, **pages}


HOST = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("family", "machine"),
    [
        *((family, "cpu") for family in SEQUENTIAL),
        pytest.param("llama", "host", marks=HOST),
        pytest.param("llama", "host, flagged", marks=HOST),
        pytest.param("qwen3_moe", "host, flagged", marks=HOST),
        pytest.param("qwen3_moe", "host", marks=[HOST, pytest.mark.slow]),
        pytest.param("mixtral", "host, flagged", marks=[HOST, pytest.mark.slow]),
        pytest.param("qwen3", "host, flagged", marks=[HOST, pytest.mark.slow]),
    ],
)
def test_a_folded_norm_changes_no_bit(family: str, machine: str, dtype: str) -> None:
    steps = [built(family, shape(stage, dtype=dtype)) for stage in (0, STAGE)]
    given = tiny.held(steps[0], 320, np.random.default_rng(5)) | inputs(steps[0])
    found = []
    for step in steps:
        program: Program | CudaProgram = tiny.program(dtype)
        if machine != "cpu":
            step = step.within(list(dict.fromkeys(node.op for node in step.nodes)))
            step = flagged_for(step, 1) if "flagged" in machine else step
            fixed, flagged = fixed_arguments(step), is_flagged(step)
            program = compose_cuda(step.ops, dtype, dtype, 1, fixed=fixed, flagged=flagged)
        found.append(run_step(step, program, machine.split(",")[0], given, 3, 1))
    for name in ("logits", "next"):
        assert found[0][name].tobytes() == found[1][name].tobytes(), name
    assert np.isfinite(found[0]["logits"]).all()
