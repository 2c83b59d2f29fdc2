"""Templates compile with the full names and the types they need; an error keeps its line."""

from pathlib import Path

import pytest

from mkport.machines.cuda.nvrtc import find
from mkport.port.port import port_file

needs_nvrtc = pytest.mark.skipif(find() is None, reason="NVRTC is not installed")

SCALE = """\
namespace layers {
namespace detail { constexpr float kTwo = 2.f; }
inline namespace v1 {
template <typename T>
__global__ void scale(const T* x, T* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = detail::kTwo * x[i];
}
}
}
"""


@needs_nvrtc
@pytest.mark.parametrize("space", ["namespace layers", "namespace"])
def test_a_template_in_namespaces_compiles(space: str, tmp_path: Path) -> None:
    path = tmp_path / "scale.cu"
    path.write_text(SCALE.replace("namespace layers", space))
    report = port_file(path, block=(64, 1, 1), instantiate="scale<float>", run=False)
    assert not report.refusals and report.exit_code == 0


@needs_nvrtc
def test_an_error_of_the_compiler_stands_in_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "helped.cu"
    path.write_text(
        "#include <cuda_fp16.h>\n\n"
        "template <typename T> __device__ T helper(T x) {\n  return fmax(0.0, x);\n}\n"
        "__global__ void helped(float* x) {\n  x[0] = helper(x[1]);\n}\n"
    )
    (finding,) = port_file(path, block=(32, 1, 1), run=False).refusals
    assert finding.code == "MK161" and finding.line == 4


def test_types_that_a_template_is_instantiated_with_come_with_it(tmp_path: Path) -> None:
    path = tmp_path / "unary.cu"
    path.write_text(
        "constexpr float kTwo = 2.f;\n"
        "struct Twice { __device__ float operator()(float x) const { return kTwo * x; } };\n"
        "struct Other { __device__ float operator()(float x) const { return -x; } };\n"
        "template <typename Op> __global__ void unary(const float* x, float* y, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) y[i] = Op{}(x[i]);\n}\n"
    )
    report = port_file(path, block=(64, 1, 1), grid=(2, 1, 1), instantiate="unary<Twice>")
    assert not report.refusals and report.exit_code == 0
    assert "struct Twice" in report.files["task.cuh"] and "kTwo" in report.files["task.cuh"]
    assert "struct Other" not in report.files["task.cuh"]
    assert any("same bits" in line for step in report.steps for line in step.lines)
