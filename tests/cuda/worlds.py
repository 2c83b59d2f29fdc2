"""Cases for tests of the CUDA source in the host build, and ways to run them."""

from pathlib import Path
from typing import Any

import numpy as np

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.declare import Op, integer, read, tensor, write
from mkport.declare.case import Case, from_bf16, to_bf16
from mkport.kernels.gemm.op import OP as GEMM
from mkport.machines.host.machine import HostMachine
from mkport.plan import Graph, Schedule, deal
from mkport.testing.cuda_forms import run_solo
from mkport.testing.parts import load_part

WIDTH, TOKENS, NODES = 96, 3, 6


def _twice(a: Any, tile: Any) -> Any:
    yield read("x", (tile, tile + 1), (0, a.k))
    yield write("y", (tile, tile + 1), (0, a.k))


TWICE = Op(  # an op whose body has only the compute role
    name="twice",
    doc="y = 2 x, a tile for each row",
    args=(
        tensor("x", "f32", "[rows, k]"),
        tensor("y", "f32", "[rows, k]"),
        integer("k", "columns"),
    ),
    tiles=lambda a: a.x.shape[0],
    access=_twice,
    order="none",
    folder=Path(__file__).parent / "twice",
    shared=lambda a, rows: a.k * 4,
)


def gemm_case(dtype: str = "bf16", seed: int = 0, **shape: Any) -> Case:
    """A gemm case; `shape` as the oracle's `make` takes it."""
    return load_part(GEMM, "oracle").make(np.random.default_rng(seed), dtype, dtype, **shape)


def gemm_program(dtype: str = "bf16") -> CudaProgram:
    """A program of gemm alone."""
    return compose_cuda([GEMM], dtype, dtype)


def solo(case: Case, dtype: str = "bf16", workers: int = 3, seed: int = 0) -> np.ndarray:
    """The output of a gemm megakernel in the host build."""
    return run_solo(GEMM, case, gemm_program(dtype), "host", workers, seed)["y"]


def exact(case: Case) -> np.ndarray:
    """The product in float64, of inputs as the tensor cores see them: bfloat16."""
    rows = int(case.arrays["count"][0])
    x = from_bf16(to_bf16(case.arrays["x"][:rows])).astype(np.float64)
    y = x @ from_bf16(case.arrays["w"]).astype(np.float64).T
    return y + case.arrays["residual"][:rows] if "residual" in case.arrays else y


def chain(workers: int) -> tuple[Schedule, CudaProgram, dict[str, np.ndarray]]:
    """Gemms over two scratch tensors in turn, each waiting for the one before it."""
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
        source = "in" if n == 0 else "ab"[(n + 1) % 2]
        w = graph.tensor(f"w{n}", "bf16", (WIDTH, WIDTH), "weight")
        given[w] = to_bf16(rng.standard_normal((WIDTH, WIDTH), np.float32) / np.sqrt(WIDTH))
        args = {"x": source, "w": w, "y": "ab"[n % 2], "n": WIDTH, "k": WIDTH}
        graph.add(GEMM, f"gemm {n}", count="count", **args)
    schedule = deal(graph, workers, share="strided")
    return schedule, compose_cuda(schedule.graph.ops, "bf16", "bf16"), given


def run_chain(workers: int, seed: int = 0, steps: int = 1, **options: Any) -> np.ndarray:
    """The chain's result after some steps."""
    schedule, program, given = chain(workers)
    machine = HostMachine(program, schedule, given, seed=seed, **options)
    machine.poison()
    for _ in range(steps):
        machine.step()
    return machine.tensors["ab"[(NODES - 1) % 2]].copy()
