"""A chain of gemms for machine tests: each node waits for the one before it."""

import numpy as np

from mkport.compose import Program, compose_cpu
from mkport.kernels.gemm.op import OP as GEMM
from mkport.plan import Graph, Schedule, deal

WIDTH, TOKENS, NODES = 96, 3, 6


def chain(workers: int) -> tuple[Schedule, Program, dict[str, np.ndarray]]:
    """A schedule of `NODES` gemms over two scratch tensors in turn, its program and inputs."""
    rng = np.random.default_rng(0)
    graph = Graph()
    graph.tensor("count", "i32", (1,), "input")
    graph.tensor("in", "f32", (TOKENS, WIDTH), "input")
    given = {
        "count": np.array([TOKENS], np.int32),
        "in": rng.standard_normal((TOKENS, WIDTH), np.float32),
    }
    for name in ("a", "b"):
        graph.tensor(name, "f32", (TOKENS, WIDTH), "scratch")
    for n in range(NODES):
        graph.tensor(f"w{n}", "f32", (WIDTH, WIDTH), "weight")
        given[f"w{n}"] = rng.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH**0.5)
        source = "in" if n == 0 else "ab"[(n + 1) % 2]
        graph.add(
            GEMM, f"gemm {n}", count="count", x=source, w=f"w{n}", y="ab"[n % 2], n=WIDTH, k=WIDTH
        )
    schedule = deal(graph, workers)
    return schedule, compose_cpu(graph.ops, "f32", "f32"), given


def expected(given: dict[str, np.ndarray]) -> np.ndarray:
    """The chain's result in float64: [TOKENS, WIDTH]."""
    x = given["in"].astype(np.float64)
    for n in range(NODES):
        x = x @ given[f"w{n}"].T
    return x


RESULT = "ab"[(NODES - 1) % 2]
