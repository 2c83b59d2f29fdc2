"""Arguments that a record cannot hold in a word, and types that are laid out to be placed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.machines.host.build import compiler
from mkport.port.layout import Layouts
from mkport.port.port import port_file
from mkport.port.unit import Unit

FILE = Path(__file__).with_name("values.cu")
needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
QUIET: dict[str, Any] = {"run": False, "compile": False}


@needs_compiler
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ("by_double", {"arguments": ["a=0.1", "x=f32[100]", "y=f64[100]", "n=100"]}),
        ("by_struct", {"arguments": ["window={5,90,0.3,1}", "x=f32[128]", "mask=0x80000001"]}),
        ("nested", {"arguments": ["x=f32[64]", "y=f32[64]"], "block": (64, 1, 1),
                    "grid": (1, 1, 1)}),
        ("doubled", {"instantiate": "doubled<scalar>", "arguments": ["x=f32[90]", "n=90"]}),
        ("scaled", {"instantiate": "scaled<layers::Scale>", "arguments": ["x=f32[90]", "n=90"]}),
    ],
)  # fmt: skip
def test_a_value_arrives_with_its_bits(kernel: str, options: dict[str, Any]) -> None:
    options = {"block": (32, 1, 1), "grid": (4, 1, 1), **options}
    report = port_file(FILE, kernel, compile=False, **options)
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]


def test_what_comes_by_value_is_read_from_a_tensor_of_its_bytes() -> None:
    op = port_file(FILE, "by_struct", block=(32, 1, 1), **QUIET).op
    assert op is not None
    window, x, mask, grid = op.args
    assert (window.kind, window.dtype, window.doc) == ("tensor", "u8", "layers::Window, by value")
    assert (x.dtype, mask.kind, grid.name) == ("f32", "int", "grid_x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x=f32[9]", "n=5000000000"], "n is long long, but a record carries its lower 32 bits"),
        (["x=f32[9]", "n=3000000000"], "n is long long, but a record carries its lower 32 bits"),
    ],
)
def test_a_number_that_is_too_wide_is_refused_in_words_of_its_own(
    arguments: list[str], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        port_file(FILE, "wide", block=(32, 1, 1), arguments=arguments, **QUIET)
    given = {"x": np.zeros(9, np.float32), "n": int(arguments[1][2:])}
    with pytest.raises(UserError, match=words):
        port_file(FILE, "wide", block=(32, 1, 1), arguments=given, **QUIET)


def test_a_struct_is_given_by_its_members() -> None:
    with pytest.raises(UserError, match="write window={first, last, factor, negate} with values"):
        port_file(FILE, "by_struct", block=(32, 1, 1),
                  arguments=["window={1,2}", "x=f32[9]", "mask=1"], **QUIET)  # fmt: skip


def test_the_numbers_in_a_struct_s_arrays_and_structs_are_given_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "struct Dims { float v[2]; }; struct Pair { int a, b; };\n"
        "struct P { Dims dims; short s[3]; Pair pair[2]; };\n"
        "__global__ void k(float* y, P p) {\n"
        "  y[threadIdx.x] = p.dims.v[0] + p.dims.v[1] * p.s[2] + p.pair[1].a;\n}\n"
    )
    once = {"grid": (1, 1, 1), "block": (32, 1, 1), "compile": False}
    with pytest.raises(UserError, match=r"p={dims.v\[0\], dims.v\[1\], s\[0\], s\[1\]"):
        port_file(path, arguments=["y=f32[32]", "p={1,2}"], **once)  # type: ignore[arg-type]
    numbers = "p={{0.5, 2}, {1, 2, 3}, {{4, 5}, {6, 7}}}"
    report = port_file(path, arguments=["y=f32[32]=0", numbers], **once)  # type: ignore[arg-type]
    assert report.verdict == "ported" and report.ran


def test_a_union_s_numbers_are_not_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "union U { int a; float b; };\n__global__ void k(float* y, U u) { *y = u.b; }\n"
    )
    with pytest.raises(UserError, match="write u=FILE.npy with its 4 bytes"):
        port_file(path, block=(32, 1, 1), arguments=["y=f32[1]", "u={1,2}"], **QUIET)


def test_a_struct_with_pointers_is_refused() -> None:
    (finding,) = port_file(FILE, "by_view", block=(32, 1, 1), **QUIET).refusals
    assert (
        finding.code == "MK103" and "`View view` is a struct with pointers in it" in finding.cause
    )


@pytest.mark.parametrize(
    ("text", "size", "align"),
    [
        ("Tile<64>", 272, 16), ("Tile<N>", 80, 16), ("layers::Window", 16, 4),
        ("layers::Kind", 1, 1), ("View", 16, 8), ("float3", 12, 4), ("Missing", None, None),
        ("Derived", None, None), ("Bits", None, None), ("Aligned", 32, 32), ("Small::Inner", 8, 8),
        ("Pick<int>::type", 16, 16), ("Pick<char>::type", 1, 1), ("Empty", 1, 1),
    ],
)  # fmt: skip
def test_a_layout_is_the_compilers_or_none(text: str, size: int | None, align: int | None) -> None:
    more = """
struct Derived : View { int more; };
struct Bits { int a : 3; };
struct __align__(32) Aligned { char c[3]; };
struct Small { struct Inner { double d; }; static constexpr int N = 4; void f(); };
template <class T> struct Pick { typedef T type; };
template <> struct Pick<int> { typedef float4 type; };
struct Empty {};
"""
    layout = Layouts(Unit(FILE.read_text() + more)).of(text, {"N": "16"})
    assert (layout and layout.size, layout and layout.align) == (size, align)


def test_a_template_s_default_may_be_made_of_its_other_arguments(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "template <typename T> struct Of { static constexpr int N = 2; };\n"
        "template <typename T, int N = 4 * Of<T>::N> __global__ void k(T* y) { y[N] = T(N); }\n"
    )
    report = port_file(path, block=(1, 1, 1), instantiate="k<float>", run=False)
    assert report.verdict == "ported", [str(f) for f in report.findings]
    assert "k<float, 4 * Of<float>::N>" in report.files["task.cuh"]


@pytest.mark.parametrize("body", [
    "struct G { int gridDim; } g; g.gridDim = 3; y[0] = g.gridDim;",
    "int blockDim = 3; y[blockDim] = 1;",
])  # fmt: skip
def test_what_is_called_as_one_of_cuda_s_own_names_is_refused_by_name(
    body: str, tmp_path: Path
) -> None:
    path = tmp_path / "k.cu"
    path.write_text(f"__global__ void k(float* y) {{\n  {body}\n}}\n")
    (finding,) = port_file(path, block=(1, 1, 1), run=False, compile=False).refusals
    assert finding.code == "MK101" and finding.line == 2
    assert "A member or variable is called" in finding.cause


@pytest.mark.parametrize(("alias", "mode"), [
    ("typedef const float* ptr;", "read"), ("using ptr = const float* __restrict__;", "read"),
    ("typedef float const* const ptr;", "read"), ("typedef float* const ptr;", "read and written"),
    ("using ptr = float* const;", "read and written"), ("typedef float f, *ptr;", ""),
])  # fmt: skip
def test_a_pointer_by_another_name_is_one(alias: str, mode: str, tmp_path: Path) -> None:
    """A struct takes it along, so that its const alone says that it is read."""
    path = tmp_path / "k.cu"
    const = "const " if mode == "read" else ""
    path.write_text(
        f"{alias}\nstruct View {{ {const}float* p; }};\n"
        "__global__ void k(ptr x, float* y) { View v{x}; y[threadIdx.x] = v.p[threadIdx.x]; }\n"
    )
    report = port_file(path, block=(32, 1, 1), run=False, compile=False)
    if not mode:
        assert report.refusals[0].code == "MK103"
        return
    assert report.verdict == "ported" and f"  x: {mode}" in report.steps[4].lines


@pytest.mark.parametrize("name", ["compute", "load", "MkBox", "mk_sum"])
def test_a_name_of_the_machine_s_own_needs_another(name: str, tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(f"__global__ void {name}(float* y) {{ y[threadIdx.x] = 1; }}\n")
    with pytest.raises(UserError, match=f"An op cannot be called {name}"):
        port_file(path, block=(32, 1, 1), run=False, compile=False)
    report = port_file(path, block=(32, 1, 1), name="mine", run=False, compile=False)
    assert report.verdict == "ported"


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
@pytest.mark.parametrize("name", ["label", "op", "head", "unused", "place_of_x", "grid_x"])
def test_a_parameter_may_be_called_as_what_a_node_has(name: str, tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(f"__global__ void k(int* {name}, int n) {{ {name}[threadIdx.x] = n; }}\n")
    given = [f"{name}=i32[32]=0", "n=3"]
    report = port_file(path, grid=(1, 1, 1), block=(32, 1, 1), arguments=given, compile=False)
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]
