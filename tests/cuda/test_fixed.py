"""Arguments that all nodes of an op share, as constants of a program for one graph."""

import math
from dataclasses import replace

import numpy as np
import pytest

from mkport.compose.cuda import compose_cuda
from mkport.compose.fixed import check_fixed, fixed_arguments
from mkport.kernels.gemm.op import OP as GEMM
from mkport.kernels.rmsnorm.op import OP as RMSNORM
from mkport.machines.cuda.records import check_ops
from mkport.machines.host.machine import HostMachine
from mkport.plan import Graph, deal
from mkport.testing import tiny


def graph_of(*columns: int, eps: float = 1e-5) -> Graph:
    """A norm, and a product of so many columns each."""
    graph = Graph()
    graph.tensor("count", "i32", (1,), "input")
    graph.tensor("x", "f32", (4, 32), "input")
    graph.tensor("h", "f32", (4, 32), "scratch")
    graph.tensor("one", "f32", (32,), "weight")
    graph.add(RMSNORM, "norm", count="count", x="x", w="one", y="h", groups=1, k=32, eps=eps)
    for n in columns:
        graph.tensor(f"w{n}", "bf16", (n, 32), "weight")
        graph.tensor(f"y{n}", "f32", (4, n), "scratch")
        graph.add(GEMM, f"to {n}", count="count", x="h", w=f"w{n}", y=f"y{n}", n=n, k=32)
    return graph


def test_what_all_nodes_say_is_fixed_and_nothing_else() -> None:
    fixed = fixed_arguments(graph_of(16, 48))
    assert fixed["gemm", "k"] == 32
    assert ("gemm", "n") not in fixed
    assert ("gemm", "residual") in fixed and fixed["gemm", "residual"] is None
    assert ("gemm", "w") not in fixed
    assert fixed["rmsnorm", "eps"] == float(np.float32(1e-5))
    assert fixed_arguments(graph_of(16))["gemm", "n"] == 16


@pytest.mark.parametrize("eps", [math.inf, math.nan])
def test_what_is_no_number_is_not_fixed(eps: float) -> None:
    assert ("rmsnorm", "eps") not in fixed_arguments(graph_of(16, eps=eps))


def test_constants_stand_in_the_file_and_records_keep_their_words() -> None:
    graph = graph_of(16, 48)
    plain = compose_cuda(graph.ops, "bf16", "bf16", 4).source
    source = compose_cuda(graph.ops, "bf16", "bf16", 4, fixed=fixed_arguments(graph)).source
    struct = source[source.index("struct GemmArgs {") : source.index("struct gemm ")]
    assert "static constexpr int32_t k = 32;" in struct
    assert "static constexpr float* residual = nullptr;" in struct
    assert "int32_t n;" in struct and "int32_t word_of_k;" in struct
    assert "static constexpr float eps = 1e-05f;" in source
    assert "constexpr int32_t k" not in plain
    begin, end = "// ======== Op gemm", "// ======== Dispatch"
    assert (
        source[source.index(begin) : source.index(end)]
        == (plain[plain.index(begin) : plain.index(end)])
    )


def test_a_program_for_another_graph_is_refused() -> None:
    program = compose_cuda(graph_of(16).ops, "bf16", "bf16", 4, fixed=fixed_arguments(graph_of(16)))
    check_ops(program, deal(graph_of(16), 2))
    with pytest.raises(ValueError, match="to 48 has another n than 16"):
        check_ops(program, deal(graph_of(48), 2))
    with pytest.raises(ValueError, match="norm has another eps than"):
        check_fixed(program.fixed, graph_of(16, eps=1e-6).nodes)


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("family", ["cohere2_moe", "llama"])
def test_a_step_has_the_same_bits_with_constants(family: str) -> None:
    graph = tiny.graphs(tiny.SHAPE)[family]
    given = tiny.fill(graph, tiny.SHAPE, np.random.default_rng(3))
    schedule = deal(graph, 3, "strided")
    ops, rows = schedule.graph.ops, tiny.SHAPE.rows
    plain = compose_cuda(ops, "bf16", "bf16", rows)
    fixed = compose_cuda(ops, "bf16", "bf16", rows, fixed=fixed_arguments(schedule.graph))
    assert fixed.source != plain.source
    seen = []
    for program in (plain, fixed):
        arrays = {name: array.copy() for name, array in given.items()}
        machine = HostMachine(program, schedule, arrays, seed=7)
        machine.poison()
        machine.step()
        seen.append({name: machine.tensors[name].tobytes() for name in ("logits", "cache.0.k")})
    assert seen[0] == seen[1]


def test_a_program_keeps_its_constants_when_its_text_is_changed() -> None:
    graph = graph_of(16)
    program = compose_cuda(graph.ops, "bf16", "bf16", 4, fixed=fixed_arguments(graph))
    assert replace(program, source="").fixed == program.fixed
