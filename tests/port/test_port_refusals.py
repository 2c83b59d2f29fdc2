"""Each refusal code by its smallest kernel, with its exact words; and that its fix is none."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mkport.errors import UserError
from mkport.machines.cuda.nvrtc import find
from mkport.machines.host.build import compiler
from mkport.port import compile as compiling
from mkport.port.finding import TITLES
from mkport.port.fitted import BUDGET
from mkport.port.port import port_file


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
    from mkport.port import edits

    monkeypatch.setattr(edits, "_load_name", lambda *given: "__ldg")  # a fault of the rewriting
    (finding,) = port_file(path, block=(32, 1, 1), run=False).refusals
    assert finding.code == "MK101" and "`__ldg` stands where" in finding.cause
    monkeypatch.setattr(edits, "left_over", lambda *given: None)  # and of what looks for it
    (finding,) = port_file(path, block=(32, 1, 1), run=False).refusals
    assert finding.code == "MK170" and "1 non-coherent load " in finding.cause


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


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("__global__ void k(float* x) { static int n; x[0] = n++; }", "MK141"),
        ("__global__ void k(cudaTextureObject_t t, float* x) { x[0] = 1; }", "MK141"),
        ("__constant__ float c[4];\n__global__ void k(float* x) { x[0] = c[1]; }", "MK141"),
        ("__global__ void k(float* x) { __barrier_sync(0); x[0] = 1; }", "MK155"),
        ('__global__ void k(float* x) { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); }',
         "MK155"),
        ('__global__ void k(float* x) { asm volatile("barrier.cluster.arrive;"); }', "MK155"),
        ('__global__ void k(float* x) { asm volatile("exit;"); }', "MK159"),
        ("__global__ void k(int* f, float* x) { while (atomicAdd(f, 0) == 0); *x = 1; }", "MK151"),
        ("__global__ void k(int* f) { while (atomicCAS(f, 0, 1) != 0) {} atomicExch(f, 0); }",
         "MK151"),
        ("__global__ void k(int* n, float* x) { __shared__ bool last; if (threadIdx.x == 0) "
         "last = atomicInc((unsigned*)n, gridDim.x) == gridDim.x - 1; __syncthreads(); "
         "if (last) x[0] = 1; }", "MK152"),
        ("__global__ void k(float* x) { float* p = (float*)malloc(4); x[0] = *p; }", "MK158"),
        ("__global__ void k(float* x) { if (x[0] > 1) __trap(); }", "MK159"),
        ("__device__ void meet() { __syncthreads(); }\n__global__ void k(float* x) "
         "{ void (*f)() = meet; if (threadIdx.x > 3) f(); x[0] = 1; }", "MK134"),
        ("__device__ void inner() { __syncthreads(); }\n__device__ void outer() { inner(); }\n"
         "__global__ void k(float* x) { auto f = &outer; if (threadIdx.x > 3) f(); x[0] = 1; }",
         "MK134"),
        ("struct A { float* p; };\n__global__ void k(A a, float* x) { x[0] = 1; }", "MK103"),
        ("template <class T> __global__ void k(T* x);\n"
         "template <> __global__ void k<float>(float* x) { x[0] = 1; }", "MK102"),
        ("__global__ void k(float* x) { x[0] = 1; }\n__global__ void k(int* x) { x[0] = 1; }",
         "MK101"),
    ],
)  # fmt: skip
def test_other_ways_to_the_same_refusals(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "k.cu"
    path.write_text(text + "\n")
    report = port_file(path, "k", block=(256, 1, 1), run=False, compile=False)
    assert code in {finding.code for finding in report.refusals}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("__global__ void k(float* x) { atomicAdd(x, 1.0f); }", "MK301"),
        ("__global__ void k(volatile float* x) { x[threadIdx.x] = 1; }", "MK302"),
        ('__global__ void k(float* x) { printf("%f", x[0]); }', "MK303"),
        ("__global__ void k(int* x) { if (*x) __syncthreads(); x[threadIdx.x + 1] = 1; }", "MK304"),
        ("__global__ void k(long long* x) { x[0] = clock64(); }", "MK305"),
        ("__global__ void k(float* x) { assert(x); x[0] = 1; }", "MK306"),
    ],
)  # fmt: skip
def test_what_is_only_warned_of(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "k.cu"
    path.write_text(text + "\n")
    report = port_file(path, "k", block=(256, 1, 1), run=False, compile=False)
    assert report.verdict == "ported" and [f.code for f in report.findings] == [code]


def test_overloaded_kernels_are_told_apart_by_their_names(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "__global__ void k(float* x) { x[0] = 1; }\n__global__ void k(int* x) { x[0] = 1; }\n"
    )
    (finding,) = port_file(path, "k", block=(32, 1, 1), run=False, compile=False).refusals
    assert finding.cause == "There are 2 kernels k, in lines 1, 2."
    assert finding.fix == "Give each kernel a name of its own."


def test_a_specialisation_is_ported_where_the_instance_is_its(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "template <class T> __global__ void k(T* x) { x[0] = 1; }\n"
        "template <> __global__ void k<int>(int* x) { x[0] = 2; }\n"
    )
    quiet: dict[str, Any] = {"block": (32, 1, 1), "run": False, "compile": False}
    one = port_file(path, instantiate="k<float>", **quiet).files["task.cuh"]
    two = port_file(path, instantiate="k<int>", **quiet).files["task.cuh"]
    assert "x[0] = 1" in one and "x[0] = 2" not in one and "k<float>(" in one
    assert "x[0] = 2" in two and "x[0] = 1" not in two and "template" not in two


REDUCE = """__device__ float reduce(float v, float* s) {
  const int t = threadIdx.x;
  s[t] = v;
  __syncthreads();
  for (int h = blockDim.x / 2; h > 0; h /= 2) {
    if (t < h) s[t] += s[t + h];
    __syncthreads();
  }
  OWN
  return s[0];
}
__global__ void k(const float* x, float* y, int n) {
  __shared__ float s[128];
  float v = x[threadIdx.x];
  CALL
  y[threadIdx.x] = v;
}
"""


@pytest.mark.parametrize(
    ("own", "call", "places"),
    [
        ("", "if (n > 0) v = reduce(v, s);", []),
        ("", "if (v > 0) v = reduce(v, s);", [("MK132", 15)]),
        ("", "for (int i = threadIdx.x; i < n; i += 128) v = reduce(v, s);", [("MK131", 15)]),
        ("", "do { v = reduce(v, s); if (v < 0) break; } while (n--);", [("MK131", 15)] * 2),
        (
            "for (int i = 0; i < t; i++) __syncthreads();", "if (v > 0) v = reduce(v, s);",
            [("MK131", 9), ("MK132", 15)],
        ),
        (
            "if (t == 0) return 0; __syncthreads();", "if (v > 0) v = reduce(v, s);",
            [("MK130", 9), ("MK132", 15)],
        ),
    ],
)  # fmt: skip
def test_a_call_under_a_condition_is_said_once(
    own: str, call: str, places: list[tuple[str, int]], tmp_path: Path
) -> None:
    """What the called function does alike in all threads that call it is no finding of its own."""
    path = tmp_path / "k.cu"
    path.write_text(REDUCE.replace("OWN", own).replace("CALL", call))
    report = port_file(path, block=(128, 1, 1), run=False, compile=False)
    assert [(f.code, f.line) for f in report.refusals] == places


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
@pytest.mark.parametrize("given", ["Max()", "[](float a, float b) { return a + b; }"])
def test_a_helper_with_shared_arrays_for_a_type_that_has_no_name(
    given: str, tmp_path: Path
) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "struct Max { __device__ float operator()(float a, float b) const { return a < b ? b : a; "
        "} };\n"
        "template <class Op> __device__ float fold(float v, Op op) {\n"
        "  __shared__ float s[64];\n"
        "  s[threadIdx.x] = v;\n  __syncthreads();\n"
        "  v = op(s[threadIdx.x ^ 1], v);\n  __syncthreads();\n  return v;\n}\n"
        "__global__ void k(const float* x, float* y) {\n"
        f"  y[threadIdx.x] = fold(fold(x[threadIdx.x], {given}), Max());\n}}\n"
    )
    arguments = ["x=f32[64]", "y=f32[64]"]
    once: dict[str, Any] = {"grid": (1, 1, 1), "block": (64, 1, 1), "arguments": arguments}
    (finding,) = port_file(path, **once, compile=False).refusals
    assert finding.code == "MK123" and "fold has shared arrays and is called for" in finding.cause


MAXIMUM = """__device__ __forceinline__ float atomicMaxFloat(float* addr, float value) {
  float old;
  BODY
}
__global__ void k(float* x, const float* y) { USE }
"""
BY_SIGN = (
    "old = value >= 0 ? __int_as_float(atomicMax((int*)addr, __float_as_int(value)))"
    " : __uint_as_float(atomicMin((unsigned*)addr, __float_as_uint(value)));"
)


@pytest.mark.parametrize(
    ("body", "use", "code"),
    [
        (f"{BY_SIGN} return old;", "atomicMaxFloat(x, y[threadIdx.x]);", "MK301"),
        (f"{BY_SIGN} return old;", "x[1] = atomicMaxFloat(x, y[threadIdx.x]);", "MK152"),
        (f"{BY_SIGN} addr[1] = old; return old;", "atomicMaxFloat(x, y[0]);", "MK152"),
        (f"{BY_SIGN} return old > 0 ? 1 : 2;", "atomicMaxFloat(x, y[0]);", "MK152"),
        (f"{BY_SIGN} float& more = old; return old;", "atomicMaxFloat(x, y[0]);", "MK152"),
        (f"{BY_SIGN} if (old > value) addr[1] = 1; return old;", "atomicMaxFloat(x, y[0]);",
         "MK152"),
        ("return 0;", "atomicAdd(x, 1.0f) ? (x[1] = 1) : (x[1] = 2);", "MK152"),
        ("return 0;", "threadIdx.x ? atomicAdd(x, 1.0f) : atomicAdd(x, 2.0f);", "MK301"),
    ],
)  # fmt: skip
def test_what_an_atomic_returns_and_nobody_uses(
    body: str, use: str, code: str, tmp_path: Path
) -> None:
    path = tmp_path / "k.cu"
    path.write_text(MAXIMUM.replace("BODY", body).replace("USE", use))
    report = port_file(path, "k", block=(256, 1, 1), run=False, compile=False)
    assert {f.code for f in report.findings} & {"MK151", "MK152", "MK301"} == {code}
