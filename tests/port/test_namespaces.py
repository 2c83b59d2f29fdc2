"""Templates in namespaces compile by their full names; a compiler's error has its own line."""

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
