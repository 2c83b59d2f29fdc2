"""CUB's collectives and cooperative groups: ported with the bits of their originals, and right."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram
from mkport.machines.cuda.headers import include_folders
from mkport.machines.cuda.nvrtc import find, nvrtc
from mkport.machines.host.build import compiler
from mkport.port.port import port_file
from mkport.testing.parts import load_file

FILE = Path(__file__).with_name("collectives.cu")
harness = load_file(Path(__file__).with_name("harness.py"))
Outputs = dict[str, dict[str, np.ndarray]]
needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
rng = np.random.default_rng(5)


def f32(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def ints(*shape: int) -> np.ndarray:
    return rng.integers(0, 9, shape).astype(np.int32)


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def case(grid: Any, block: Any, given: dict[str, Any], instance: str = "") -> Any:
    return harness.Case(grid, block, given, instance)


CASES = {
    "rms": case((3, 1, 1), (64, 1, 1), {"out": zeros(3, 90), "x": f32(3, 90), "hidden": 90}),
    "ranges": case((2, 1, 1), (32, 4, 1), {
        "x": f32(256), "y": zeros(2), "places": zeros(256, dtype=np.int32)}, "ranges<32, 4>"),
    "running": case((2, 1, 1), (128, 1, 1), {"x": f32(256), "y": zeros(256), "total": zeros(2)}),
    "offsets": case((2, 1, 1), (64, 1, 1), {
        "counts": ints(500), "starts": zeros(500, dtype=np.int32), "n": 500}),
    "halves": case((2, 1, 1), (128, 1, 1), {
        "x": f32(256), "sums": zeros(16), "ranks": zeros(256, dtype=np.int32)}),
    "softmax_groups": case((3, 1, 1), (128, 1, 1), {
        "x": f32(3, 200), "y": zeros(3, 200), "cols": 200}),
    "rows_by_warp": case((2, 1, 1), (128, 1, 1), {
        "x": ints(7, 32), "y": zeros(7, 32, dtype=np.int32),
        "votes": zeros(7, 4, dtype=np.int32), "rows": 7}),
    "scan_pairs": case((2, 1, 1), (64, 1, 1), {
        "in": f32(2, 150, 2), "out": zeros(2, 150, 2), "len": 150}, "scan_pairs<64, 1>"),
    "first_over": case((3, 1, 1), (64, 1, 1), {
        "p": np.abs(f32(3, 200)), "pos": zeros(3, dtype=np.int32), "limit": 60.0, "n": 200},
        "first_over<64>"),
}  # fmt: skip


def truth(kernel: str, given: dict[str, Any]) -> dict[str, np.ndarray]:
    """What a kernel is to compute, in float64."""
    if kernel == "scan_pairs":
        pairs = given["in"].astype(np.float64)
        out, state = np.zeros_like(pairs), np.tile([1.0, 0.0], (2, 1))
        for i in range(pairs.shape[1]):
            a, b = pairs[:, i, 0], pairs[:, i, 1]
            state = np.stack([a * state[:, 0], a * state[:, 1] + b], axis=1)
            out[:, i] = state
        return {"out": out}
    if kernel == "first_over":
        sums = np.cumsum(given["p"].astype(np.float64), axis=1)
        return {"pos": (sums > given["limit"]).argmax(axis=1)}
    x = given["x" if "x" in given else "counts"].astype(np.float64)
    if kernel == "rms":
        return {"out": x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)}
    if kernel == "ranges":
        parts = x.reshape(2, 128)
        before = np.cumsum(parts > 0, axis=1) - (parts > 0)
        places = np.where(parts > 0, before, -1).reshape(-1)
        return {"y": parts.min(axis=1) + (parts > 0).sum(axis=1), "places": places}
    if kernel == "running":
        sums = np.cumsum(x.reshape(2, 128), axis=1)
        return {"y": sums.reshape(-1), "total": sums[:, -1]}
    if kernel == "offsets":
        parts = [x[:256], x[256:]]
        return {"starts": np.concatenate([np.cumsum(part) - part for part in parts])}
    if kernel == "halves":
        negative = (x < 0).reshape(-1, 32)
        ranks = np.cumsum(negative, axis=1) - negative
        return {"sums": x.reshape(16, 16).sum(axis=1), "ranks": ranks.reshape(-1)}
    if kernel == "softmax_groups":
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return {"y": e / e.sum(axis=1, keepdims=True)}
    turned = x[:, ::-1].reshape(7, 4, 8)
    swapped = turned.reshape(7, 4, 4, 2)[..., ::-1].reshape(7, 4, 8)
    y = turned.sum(axis=2, keepdims=True) + swapped
    votes = ((turned > 2) << np.arange(8)).sum(axis=2)
    return {"y": y.reshape(7, 32), "votes": votes}


@needs_compiler
@pytest.mark.parametrize("kernel", CASES)
def test_a_collective_is_right_and_keeps_its_bits(
    kernel: str, kernels: Any, program: CudaProgram, originals: Outputs
) -> None:
    for name, wanted in truth(kernel, CASES[kernel].given).items():
        np.testing.assert_allclose(originals[kernel][name], wanted, rtol=2e-5, atol=2e-6)
    assert not kernels.differences(kernel, originals[kernel], program)


@pytest.mark.skipif(find() is None, reason="NVRTC is not installed")
def test_ports_and_their_originals_compile_for_a_gpu(kernels: Any, program: CudaProgram) -> None:
    assert nvrtc().compile(program.source, "sm_90a").registers["megakernel"] <= 168
    if not any((folder / "cub/cub.cuh").is_file() for folder in include_folders()):
        pytest.skip("CUB's own headers are not here")
    port = kernels.prepared("first_over")
    source, name = port._original_for_gpu(), port._full_name()
    assert "mk_of_lane" not in source and "#include <cub/block/block_scan.cuh>" in source
    made = nvrtc().compile(source, "sm_90a", instances=[name], include=include_folders())
    assert made.names[name] in made.registers


def refused(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "k.cu"
    path.write_text(text + "\n")
    report = port_file(path, "k", block=(128, 1, 1), run=False, compile=False)
    return [f.code for f in report.refusals]


HEAD = "#include <cub/cub.cuh>\n#include <cooperative_groups.h>\n"


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("__global__ void k(float* x) { typedef cub::BlockReduce<float, 128> R; __shared__ "
         "R::TempStorage t; if (threadIdx.x < 64) x[0] = R(t).Sum(x[threadIdx.x]); }", ["MK132"]),
        ("__global__ void k(float* x) { typedef cub::BlockReduce<float, 128> R; __shared__ "
         "R::TempStorage t; if (threadIdx.x == 5) return; x[1] = R(t).Sum(x[threadIdx.x]); }",
         ["MK130", "MK133"]),
        ("__global__ void k(float* x) { auto b = cooperative_groups::this_thread_block(); "
         "if (b.thread_rank() < 64) b.sync(); x[threadIdx.x] = 1; }", ["MK132"]),
        ("__global__ void k(float* x) { typedef cub::BlockReduce<float, 128, "
         "cub::BLOCK_REDUCE_RAKING> R; __shared__ R::TempStorage t; x[0] = R(t).Sum(1); }",
         ["MK105"]),
        ("__global__ void k(float* x) { auto g = cooperative_groups::this_grid(); g.sync(); "
         "x[threadIdx.x] = 1; }", ["MK150"]),
        ("__global__ void k(float* x) { cuda::atomic_ref<float> r(x[0]); r.fetch_add(1); }",
         ["MK105"]),
    ],
)  # fmt: skip
def test_what_is_not_shimmed_or_not_met_by_all_is_refused(
    tmp_path: Path, text: str, codes: list[str]
) -> None:
    assert refused(tmp_path, HEAD + text) == codes


def test_a_warps_meeting_is_not_the_blocks(tmp_path: Path) -> None:
    text = (
        "__global__ void k(float* x) { auto b = cooperative_groups::this_thread_block(); "
        "auto w = cooperative_groups::tiled_partition<32>(b); if (threadIdx.x / 32 == 1) "
        "{ x[threadIdx.x] = w.shfl(x[threadIdx.x], 0); w.sync(); } b.sync(); }"
    )
    assert refused(tmp_path, HEAD + text) == []


@needs_compiler
def test_storage_used_again_without_a_barrier_is_a_race_of_the_original(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "#include <cub/cub.cuh>\n"
        "__global__ void k(const float* x, float* y) {\n"
        "  typedef cub::BlockReduce<float, 128> R;\n"
        "  __shared__ R::TempStorage t;\n"
        "  const float a = R(t).Sum(x[threadIdx.x]), b = R(t).Sum(x[threadIdx.x] * 2);\n"
        "  if (threadIdx.x == 0) y[0] = a + b;\n"
        "}\n"
    )
    report = port_file(path, "k", block=(128, 1, 1), compile=False,
                       arguments={"x": f32(128), "y": zeros(1)})  # fmt: skip
    assert report.verdict == "undefined" and report.exit_code == 4
    assert "MK201" in {f.code for f in report.refusals}
