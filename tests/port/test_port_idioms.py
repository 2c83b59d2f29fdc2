"""Idioms of public code: ported with the bits of their originals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.compose.cuda import CudaProgram
from mkport.machines.cuda.nvrtc import find, nvrtc
from mkport.machines.host.build import compiler
from mkport.port.port import port_file
from mkport.testing.parts import load_file

FILE = Path(__file__).with_name("idioms.cu")
harness = load_file(Path(__file__).with_name("harness.py"))
needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
rng = np.random.default_rng(11)
Outputs = dict[str, dict[str, np.ndarray]]


def f32(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def zeros(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def case(grid: int, block: tuple[int, int, int], given: dict[str, Any], **more: Any) -> Any:
    return harness.Case((grid, 1, 1), block, given, **more)


CASES = {
    "fused_residual_forward_kernel5": case(2, (32, 4, 1), {
        "residual": zeros(6, 256), "normed": zeros(6, 256), "mean": zeros(6), "rstd": zeros(6),
        "inp1": f32(6, 256), "inp2": f32(6, 256), "weight": f32(256), "bias": f32(256), "N": 6,
        "C": 256}, shared=6144),
    "softmax_stats": case(3, (128, 1, 1), {"x": f32(3, 100), "y": zeros(3, 2), "n": 100}),
    "softmax_forward_kernel5": case(4, (128, 1, 1), {
        "out": zeros(16, 16), "inv_temperature": 0.5, "inp": f32(16, 16), "N": 1, "T": 16}),
    "sum_and_count": case(3, (128, 1, 1), {
        "x": f32(3, 100), "y": zeros(3), "over": zeros(3, dtype=np.int32), "n": 100}),
    "nested_once": case(1, (64, 1, 1), {"x": f32(64), "y": zeros(64)}),
    "act_and_mul_kernel": case(3, (64, 1, 1), {
        "out": zeros(3, 100), "input": f32(3, 200), "d": 100},
        instance="act_and_mul_kernel<float, vllm::silu_kernel<float>, true>"),
    "moe_align_block_size_kernel": case(1, (32, 1, 1), {
        "topk_ids": rng.integers(0, 8, 100).astype(np.int32),
        "sorted_token_ids": zeros(300, dtype=np.int32), "expert_ids": zeros(60, dtype=np.int32),
        "total_tokens_post_pad": zeros(1, dtype=np.int32), "num_experts": 8, "block_size": 16,
        "numel": 100}, instance="moe_align_block_size_kernel<int32_t, int32_t>", shared=1200),
    "DecodeKernel": case(3, (32, 4, 1), {
        "q": f32(3, 128), "k": f32(40, 128), "v": f32(40, 128), "o": zeros(3, 128),
        "lse": zeros(3), "indptr": np.array([0, 13, 13, 40], np.int32), "sm_scale": 0.1,
        "head_dim": 128}, instance="DecodeKernel<32, 4, 4, 2>", shared=8192),
    "samples_reduce": case(3, (64, 1, 1), {
        "g_idata": rng.standard_normal(180), "g_odata": zeros(3, dtype=np.float64), "n": 180},
        instance="samples_reduce<double>", shared=512),
    "mul_kernel": case(2, (64, 1, 1), {"a": f32(99), "b": f32(99), "c": zeros(99), "n": 99}),
    "row_op": case(3, (64, 1, 1), {
        "in": f32(3, 300), "out": zeros(3), "bias": f32(3), "cols": 300},
        instance="row_op<Mode::kSum, 2, true, double, float>"),
    "row_absmax": case(3, (96, 1, 1), {"x": f32(3, 200), "s": zeros(3), "cols": 200}),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("kernel", CASES)
def test_an_idiom_keeps_its_bits(
    kernel: str, kernels: Any, program: CudaProgram, originals: Outputs
) -> None:
    given = CASES[kernel].given
    assert any(not np.array_equal(originals[kernel][n], given[n]) for n in originals[kernel])
    assert not kernels.differences(kernel, originals[kernel], program)


@needs_compiler
def test_values_are_right_where_numpy_says_them(originals: Outputs) -> None:
    x = CASES["softmax_stats"].given["x"].astype(np.float64)
    most = x.max(axis=1)
    wanted = np.stack([most, np.exp(x - most[:, None]).sum(axis=1)], axis=1)
    np.testing.assert_allclose(originals["softmax_stats"]["y"], wanted, rtol=1e-5)
    x = CASES["sum_and_count"].given["x"]
    np.testing.assert_allclose(originals["sum_and_count"]["y"], x.sum(axis=1), rtol=1e-4)
    np.testing.assert_array_equal(originals["sum_and_count"]["over"], (x > 0.5).sum(axis=1))


@pytest.mark.skipif(find() is None, reason="NVRTC is not installed")
def test_ports_compile_for_a_gpu_together(program: CudaProgram) -> None:
    assert nvrtc().compile(program.source, "sm_90a").registers["megakernel"] <= 168


def test_each_instance_of_a_helper_has_an_array_of_its_own(kernels: Any) -> None:
    task = kernels.reports["softmax_stats"].files["task.cuh"]
    assert "struct mk_place_of_blockReduce<warpReduceMax> { enum { AT = 0 }; };" in task
    assert "struct mk_place_of_blockReduce<warpReduceSum> { enum { AT = 1 }; };" in task
    lines = "\n".join(kernels.reports["sum_and_count"].steps[2].lines)
    assert "in blockReduceSum, once for each of 10 instances" in lines


def test_a_kernel_that_a_macro_makes_is_found_among_torchs_code() -> None:
    report = port_file(FILE, "add_kernel", run=False, compile=False)
    assert report.verdict == "ported" and report.launch is not None
    assert report.launch.block == (64, 1, 1)


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ("cg::thread_block_tile<32> w = cg::tiled_partition<32>(b); "
         "if (w.meta_group_rank() == 1) return; w.sync(); x[threadIdx.x] = 1;", []),
        ("cg::thread_block_tile<16> w = cg::tiled_partition<16>(b); "
         "if (w.meta_group_rank() == 1) return; w.sync(); x[threadIdx.x] = 1;", ["MK133"]),
        ("cg::thread_block_tile<32> w = cg::tiled_partition<32>(b); "
         "if (w.meta_group_rank() == 1) return; b.sync(); x[threadIdx.x] = 1;", ["MK130"]),
    ],
)  # fmt: skip
def test_tiles_are_known_by_their_size(body: str, codes: list[str], tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
        f"__global__ void k(float* x) {{ auto b = cg::this_thread_block(); {body} }}\n"
    )
    report = port_file(path, "k", block=(128, 1, 1), run=False, compile=False)
    assert [f.code for f in report.refusals] == codes
