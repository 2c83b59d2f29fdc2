"""Files as they lie in a repository: headers in other folders, words that macros make."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.machines.cuda.nvrtc import find
from mkport.machines.host.build import compiler
from mkport.port.loads import noncoherent
from mkport.port.port import port_file
from mkport.port.report import Report

needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
needs_nvrtc = pytest.mark.skipif(find() is None, reason="NVRTC is not installed")
X, Y = np.linspace(-3, 300000, 64, dtype=np.float32), np.zeros(64, np.float32)
GIVEN: dict[str, Any] = {"x": X, "y": Y, "n": 64}
UTILITIES = """\
#pragma once
#define DEVICE_INLINE __device__ __forceinline__
#define INSTANTIATE(type) template void launch<type>(const type*, type*, int)
namespace conversion {
template <class To, class From> DEVICE_INLINE To to(From x) { return To(x); }
template <> DEVICE_INLINE float to(float x) { return x + 1.0f; }
}
constexpr int ceil_of(int a, int b) { return (a + b - 1) / b; }
struct Rows { int rows; constexpr int parts(int by) const { return ceil_of(rows, by); } };
"""
KERNEL = """\
#include "utilities.h"
template <class T> __global__ void k(const T* x, T* y, int n) {
  const Rows rows = {n};
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = conversion::to<float>(x[i]) * rows.parts(3) + ceil_of(7, 2);
}
template <class T> void launch(const T* x, T* y, int n) { k<<<2, 32>>>(x, y, n); }
INSTANTIATE(float);
INSTANTIATE(double);
"""


def ported(path: Path, **options: Any) -> Report:
    return port_file(path, "k", block=(32, 1, 1), grid=(2, 1, 1), **options)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A file, and the folder in which its headers are."""
    source, headers = tmp_path / "src", tmp_path / "include"
    source.mkdir()
    headers.mkdir()
    (source / "k.cu").write_text(KERNEL)
    (headers / "utilities.h").write_text(UTILITIES)
    return source / "k.cu", headers


def test_more_arguments_than_a_template_has_are_wrong_use(folders: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="a template over T: --instantiate gives it 2 arguments"):
        ported(folders[0], instantiate="k<float, 4>", run=False)


def test_a_header_that_is_not_there_is_named(folders: tuple[Path, Path]) -> None:
    report = ported(folders[0], instantiate="k<float>", run=False)
    assert report.verdict == "refused"
    assert "Headers are not here (utilities.h): give their folders with -I DIR." in str(
        report.findings[0]
    )


@needs_compiler
def test_headers_of_other_folders_and_words_that_macros_make(folders: tuple[Path, Path]) -> None:
    path, headers = folders
    report = ported(path, instantiate="k<float>", include=[headers], arguments=GIVEN)
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]
    task = report.files["task.cuh"]
    assert "INSTANTIATE(" not in task and "__device__ constexpr int parts" in task
    assert "__device__ constexpr int ceil_of" in task
    assert "ceil_of" in report.files["standalone.cu"]


@needs_compiler
def test_a_call_of_a_conversion_operator_is_read(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(
        "struct Box { float v; __device__ operator float() const { return v; } };\n"
        "__global__ void k(const float* x, float* y, int n) {\n"
        "  Box b = {x[threadIdx.x]};\n"
        "  y[threadIdx.x] = b.operator float() + n;\n"
        "}\n"
    )
    report = port_file(
        tmp_path / "k.cu", block=(32, 1, 1), grid=(1, 1, 1), arguments=GIVEN, compile=False
    )
    assert report.ran, [str(f) for f in report.findings]


@needs_compiler
def test_branches_that_tear_a_namespace_apart(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(
        "namespace old {\n#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800\n"
        "__global__ void k(float* x) {}\n}\n#else\n"
        "__global__ void k(const float* x, float* y, int n) {\n"
        "  if (threadIdx.x < n) y[threadIdx.x] = 2 * x[threadIdx.x];\n}\n}\n#endif\n"
    )
    report = ported(tmp_path / "k.cu", arguments=GIVEN, compile=False)
    assert report.ran, [str(f) for f in report.findings]


PLACE = """\
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(const float* x, float* y, int n) {
  cg::grid_group grid = cg::this_grid();
  for (auto i = grid.thread_rank(); i < n; i += grid.size())
    y[i] = x[i] + cg::this_grid().num_blocks();
  MEETS
}
"""


@needs_compiler
def test_a_place_in_the_grid_is_no_barrier(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(PLACE.replace("MEETS", ""))
    assert ported(path, arguments=GIVEN).ran
    path.write_text(PLACE.replace("MEETS", "grid.sync();"))
    assert {f.code for f in ported(path, arguments=GIVEN).refusals} == {"MK150"}


TABLES = """\
__device__ const float table[4] = {1.5f, 2.5f, 3.5f, 4.5f};
__global__ void k(const float* __restrict__ x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = sinf(x[i]) * table[i & 3] + cos(double(x[i]));
}
"""


@needs_nvrtc
def test_tables_that_are_compiled_in_are_no_memory(tmp_path: Path) -> None:
    """`sinf` reads one of the math library's."""
    path = tmp_path / "k.cu"
    path.write_text(TABLES)
    report = ported(path, run=False)
    assert report.verdict == "ported", [str(f) for f in report.findings]
    lines = {line.split(":")[0].strip(): line for line in report.steps[9].lines}
    assert (
        ": 1 ld.global.nc" in lines["the original"] and "constant tables" in lines["the original"]
    )
    assert ": 0 ld.global.nc" in lines["the port alone"]


def test_an_address_that_may_be_another_counts_as_memory() -> None:
    module = ".global .align 4 .b8 table[16] = {0};\n"
    base = (
        "mov.u64 %rd1, table;\nadd.s64 %rd2, %rd1, %rd9;\n{}\nld.global.nc.f32 %f1, [%rd2+4];\n}}\n"
    )
    assert noncoherent(base.format("add.s64 %rd2, %rd2, 4;"), module) == (0, 1)
    assert noncoherent(base.format("ld.param.u64 %rd2, [p];"), module) == (1, 0)
    assert noncoherent(base.format("selp.b64 %rd2, %rd1, %rd7, %p1;"), module) == (1, 0)


@needs_compiler
def test_unsigned_arrays_are_given_by_their_own_names(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text("__global__ void k(const unsigned* x, unsigned* y) { y[threadIdx.x] = ~*x; }\n")
    report = ported(path, arguments=["x=u32[1]=7..7", "y=u32[32]"], compile=False)
    assert report.ran, [str(f) for f in report.findings]


LEFT_OUT = """\
__device__ inline void tell(int* p) { asm volatile("st.release.gpu.s32 [%0], 1;" ::"l"(p)); }
template <class T> struct Vector {
  T x[4];
  __device__ void load(const T* p) { for (int i = 0; i < 4; i++) x[i] = p[i]; }
  __device__ void send(T* p) { tell((int*)p); }
  __device__ void send_all(T* p);
};
template <class T> __device__ void Vector<T>::send_all(T* p) { tell((int*)p); }
__global__ void k(const float* x, float* y, int n) {
  Vector<float> v;
  v.load(x + threadIdx.x);
  y[threadIdx.x] = v.x[n & 3];
  MORE
}
"""


@needs_compiler
def test_a_member_function_that_nothing_names_counts_for_nothing(tmp_path: Path) -> None:
    """It goes with what only it reaches; named, it is a reason to refuse."""
    path = tmp_path / "k.cu"
    path.write_text(LEFT_OUT.replace("MORE", ""))
    report = port_file(path, block=(32, 1, 1), grid=(1, 1, 1), arguments=GIVEN)
    assert report.ran, [str(f) for f in report.findings]
    assert "st.release" not in report.files["task.cuh"] and "send(T" not in report.files["task.cuh"]
    for call in ("v.send(y);", "v.send_all(y);"):
        path.write_text(LEFT_OUT.replace("MORE", call))
        report = port_file(path, block=(32, 1, 1), grid=(1, 1, 1), run=False, compile=False)
        assert {f.code for f in report.refusals} == {"MK151"}


STANDARD = """\
#include <algorithm>
#include <limits>
#include <type_traits>
template <class T> __global__ void k(const T* x, T* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  T best = -std::numeric_limits<T>::infinity();
  using Step = std::conditional_t<std::is_same<T, float>::value, int, float>;
  if constexpr (std::is_same_v<T, float>) best = std::max(best, x[i]);
  if (i < n) y[i] = best + Step(2.5f) + std::min(i, 3) + std::numeric_limits<signed char>::min();
}
"""


FACTS = """\
#include <limits>
#include <type_traits>
enum E { A };
struct Base {};
struct Derived : Base {};
template <class T, class U> constexpr bool same = std::is_same_v<T, U>;
__global__ void k(const float* x, float* y, int n) {
  static_assert(same<int, int> && !same<int, unsigned> && std::is_same<int*, int*>::value);
  static_assert(same<std::conditional_t<true, int, float>, int>);
  static_assert(same<std::conditional_t<false, int, float>, float>);
  static_assert(same<std::enable_if_t<true, float>, float>);
  static_assert(same<std::remove_cv_t<const volatile int>, int>);
  static_assert(same<std::remove_reference_t<int&&>, int> && same<std::decay_t<const int&>, int>);
  static_assert(same<std::remove_pointer_t<float*>, float>);
  static_assert(std::is_pointer_v<int*> && !std::is_pointer_v<int>);
  static_assert(std::is_floating_point_v<const double> && !std::is_floating_point_v<int>);
  static_assert(std::is_integral_v<unsigned char> && !std::is_integral_v<float>);
  static_assert(std::is_arithmetic_v<float> && !std::is_arithmetic_v<Base>);
  static_assert(std::is_signed_v<float> && !std::is_signed_v<unsigned> && !std::is_signed_v<Base>);
  static_assert(std::is_unsigned<unsigned>::value && !std::is_unsigned<int>::value);
  static_assert(std::is_enum_v<E> && !std::is_enum_v<int>);
  static_assert(std::is_base_of_v<Base, Derived> && !std::is_base_of_v<Derived, Base>);
  static_assert(same<std::make_unsigned_t<int>, unsigned>);
  static_assert(same<std::make_signed_t<unsigned>, int>);
  static_assert(std::numeric_limits<int>::max() == 2147483647);
  static_assert(std::numeric_limits<signed char>::min() == -128);
  static_assert(std::numeric_limits<float>::lowest() < -3e38f);
  static_assert(std::numeric_limits<float>::epsilon() == 1.1920928955078125e-7f);
  y[blockIdx.x] = x[n - 1];
}
"""


@needs_compiler
@needs_nvrtc
def test_both_compilers_agree_on_types_and_limits(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(FACTS)
    report = ported(tmp_path / "k.cu", arguments=GIVEN)
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]
    assert all(code in " ".join(report.steps[8].lines) for code in ("the original", "the port"))


@needs_compiler
@needs_nvrtc
def test_types_and_limits_of_the_standard_library(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(STANDARD)
    report = ported(path, instantiate="k<float>", arguments=GIVEN)
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]
    assert all(code in " ".join(report.steps[8].lines) for code in ("the original", "the port"))
