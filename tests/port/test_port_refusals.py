"""Each refusal code by its smallest kernel, with its exact words; and that its fix is none."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mkport.errors import UserError
from mkport.machines.cuda.nvrtc import find
from mkport.port import compile as compiling
from mkport.port.finding import TITLES
from mkport.port.port import BUDGET, port_file


def _refusals() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "refusals", Path(__file__).with_name("refusals.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["refusals"] = module
    spec.loader.exec_module(module)
    return module


refusals = _refusals()
needs_nvrtc = pytest.mark.skipif(find() is None, reason="NVRTC is not installed")


@pytest.mark.parametrize("code", refusals.CODES)
def test_a_kernel_is_refused_with_its_code_and_these_words(code: str) -> None:
    report = refusals.refused(code).port()
    wanted = refusals.message(code)
    wanted = wanted.replace("{budget}", str(BUDGET)).replace("{over}", str(240000 - BUDGET))
    found = [str(f) for f in report.findings if f.code == code]
    assert report.verdict == "refused" and report.exit_code == 3
    assert found[0] == wanted
    assert report.op is None and not report.files.get("unfinished")


def test_every_code_of_the_analysis_has_a_kernel() -> None:
    static = {code for code in TITLES if code < "MK160"} - {"MK107"}  # Numba's
    assert static == set(refusals.CODES)


@pytest.mark.parametrize("code", ["MK111", "MK112", "MK120", "MK130", "MK132", "MK133", "MK151"])
def test_nothing_is_emitted_or_written_for_a_refused_kernel(code: str, tmp_path: Path) -> None:
    report = refusals.refused(code).port(out=tmp_path)
    assert not report.files and not list(tmp_path.iterdir())


def test_the_split_points_of_a_grid_barrier_are_named() -> None:
    (finding,) = refusals.refused("MK150").port().refusals
    assert finding.line == 7 and "line 7 into 2 ops" in finding.fix


@needs_nvrtc
def test_too_many_registers(tmp_path: Path) -> None:
    path = tmp_path / "wide.cu"
    path.write_text(
        "__global__ void wide(const float* x, float* y, int n) {\n"
        "  float a[200];\n"
        "#pragma unroll\n"
        "  for (int i = 0; i < 200; i++) a[i] = x[i * 256 + threadIdx.x];\n"
        "  for (int s = 0; s < n; s++) {\n"
        "#pragma unroll\n"
        "    for (int i = 0; i < 200; i++) a[i] = a[i] * a[(i + 7) % 200] + x[s];\n"
        "  }\n"
        "#pragma unroll\n"
        "  for (int i = 0; i < 200; i++) y[i * 256 + threadIdx.x] = a[i];\n"
        "}\n"
    )
    report = port_file(path, block=(256, 1, 1), run=False)
    (finding,) = report.refusals
    assert finding.code == "MK160" and "registers a thread" in finding.cause


@needs_nvrtc
def test_a_file_that_does_not_compile(tmp_path: Path) -> None:
    path = tmp_path / "lacks.cu"
    path.write_text("__global__ void lacks(float* x) { x[0] = of_another_file(x[1]); }\n")
    (finding,) = port_file(path, block=(32, 1, 1), run=False).refusals
    assert finding.code == "MK161" and '"of_another_file" is undefined' in finding.cause


@needs_nvrtc
def test_read_only_loads_go_unless_a_buffer_is_immutable(tmp_path: Path) -> None:
    path = tmp_path / "reads.cu"
    path.write_text(
        "__global__ void reads(const float* __restrict__ x, const float* w, float* y) {\n"
        "  y[threadIdx.x] = x[threadIdx.x] + __ldg(w + threadIdx.x);\n"
        "}\n"
    )
    plain = port_file(path, block=(32, 1, 1), run=False)
    lines = {line.split(":")[0].strip(): line for line in plain.steps[9].lines}
    assert plain.verdict == "ported"
    assert "2 ld.global.nc" in lines["the original"]
    assert "0 ld.global.nc" in lines["the port alone"]
    kept = port_file(path, block=(32, 1, 1), run=False, immutable=["w"])
    assert "__ldg(w" in kept.files["task.cuh"] and 'whole(a, "w", immutable)' in kept.files["op.py"]
    assert any("the port alone: 1 ld.global.nc" in line for line in kept.steps[9].lines)


@needs_nvrtc
def test_machine_code_with_non_coherent_loads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "reads.cu"
    path.write_text("__global__ void reads(const float* x, float* y) { *y = __ldg(x); }\n")
    from mkport.port import emit

    monkeypatch.setattr(emit, "_load_name", lambda *given: "__ldg")  # a fault of the rewriting
    (finding,) = port_file(path, block=(32, 1, 1), run=False).refusals
    assert finding.code == "MK101" and "`__ldg` stands where" in finding.cause
    monkeypatch.setattr(emit, "left_over", lambda *given: None)  # and of what looks for it
    (finding,) = port_file(path, block=(32, 1, 1), run=False).refusals
    assert finding.code == "MK170" and "non-coherent loads" in finding.cause


@needs_nvrtc
@pytest.mark.skipif(compiling.disassembler() is None, reason="nvdisasm is not installed")
def test_the_machine_code_is_read_where_there_is_a_disassembler(tmp_path: Path) -> None:
    path = tmp_path / "reads.cu"
    path.write_text("__global__ void reads(const float* x, float* y) { *y = __ldg(x); }\n")
    report = port_file(path, block=(32, 1, 1), run=False)
    assert any("the original: 1 ld.global.nc, 1 LDG.CONSTANT" in s for s in report.steps[9].lines)
    assert any("the port alone: 0 ld.global.nc, 0 LDG.CONSTANT" in s for s in report.steps[9].lines)


def test_wrong_use_names_the_kernels(tmp_path: Path) -> None:
    path = tmp_path / "two.cu"
    path.write_text("__global__ void a(float* x) {}\n__global__ void b(float* x) {}\n")
    with pytest.raises(UserError, match="several kernels: a, b"):
        port_file(path)
    with pytest.raises(UserError, match="no kernel 'c'; it has a, b"):
        port_file(path, "c")
    with pytest.raises(UserError, match="--immutable y"):
        port_file(path, "a", block=(32, 1, 1), immutable=["y"])
    path.write_text("int main() {}\n")
    with pytest.raises(UserError, match="has no kernel"):
        port_file(path)
