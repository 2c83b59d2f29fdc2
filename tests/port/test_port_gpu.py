"""Ports on a GPU: the bits of their originals there, alone and among others' tasks."""

from pathlib import Path

import pytest

from mkport.port.port import port_file
from mkport.testing.parts import load_file

HERE = Path(__file__).parent
COLLECTIVES = load_file(HERE / "test_port_collectives.py").CASES
IDIOMS = load_file(HERE / "test_port_idioms.py").CASES
TURNED, SUMS = (getattr(load_file(HERE / "test_port_copies.py"), n) for n in ("TURNED", "SUMS"))
pytestmark = pytest.mark.gpu
KERNELS = Path(__file__).parents[2] / "kernels"
STYLES = Path(__file__).with_name("styles.cu")


@pytest.mark.parametrize(
    ("kernel", "block", "options"),
    [
        ("matmul", (16, 16, 1), {}),
        ("softmax", (128, 1, 1), {"instantiate": "softmax<float, 128>", "shared": 512}),
        ("saxpy", (640, 1, 1), {}),
        ("transpose", (32, 8, 1), {}),
        ("gemv", (32, 4, 1), {}),
        ("histogram", (256, 1, 1), {}),
        ("scan", (128, 1, 1), {"shared": 1024}),
        ("votes", (160, 1, 1), {}),
        ("relu", (50, 1, 1), {}),
    ],
)
def test_a_style_has_its_bits(kernel: str, block: tuple[int, int, int], options: dict) -> None:
    report = port_file(STYLES, kernel, block=block, machine="cuda", **options)
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]


@pytest.mark.parametrize(
    ("op", "kernel", "block", "shared", "arguments"),
    [
        ("rmsnorm", "rmsnorm", 256, 32, ["x=f32[6,64]", "w=f32[64]", "y=f32[6,64]", "k=64",
                                         "eps=1e-5"]),
        ("gemm", "gemm_f32", 128, 0, ["x=f32[8,64]", "w=f32[96,64]", "residual=null",
                                      "y=f32[8,96]", "tokens=8", "n=96", "k=64", "norm_w=null",
                                      "norm_eps=0", "norm_y=null"]),
        ("moe_combine", "moe_combine", 256, 0, ["weights=f32[6,3]", "y=f32[6,3,64]",
                                                "x=f32[6,64]", "more=null", "out=null", "n=64",
                                                "top=3"]),
    ],
)  # fmt: skip
def test_a_standalone_kernel_has_its_bits(
    op: str, kernel: str, block: int, shared: int, arguments: list[str]
) -> None:
    report = port_file(
        KERNELS / op / "standalone.cu", kernel, grid=(6, 1, 1), block=(block, 1, 1), shared=shared,
        arguments=arguments, machine="cuda",
    )  # fmt: skip
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]


@pytest.mark.parametrize(
    ("file", "kernel"),
    [("collectives.cu", kernel) for kernel in COLLECTIVES] + [("idioms.cu", k) for k in IDIOMS],
)
def test_a_collective_has_the_bits_of_the_librarys_own_headers(file: str, kernel: str) -> None:
    """The original has CUB's and CUDA's own headers, the port mkport's text of them."""
    case = (COLLECTIVES if file == "collectives.cu" else IDIOMS)[kernel]
    report = port_file(
        HERE / file, kernel, grid=case.grid, block=case.block, shared=case.shared or None,
        instantiate=case.instance or None, arguments=case.given, machine="cuda", compile=False,
    )  # fmt: skip
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        ("by_double", ["a=0.1", "x=f32[100]", "y=f64[100]", "n=100"]),
        ("by_struct", ["window={5,90,0.3,1}", "x=f32[128]", "mask=0x80000001"]),
    ],
)
def test_a_value_arrives_with_its_bits(kernel: str, arguments: list[str]) -> None:
    report = port_file(
        HERE / "values.cu", kernel, grid=(4, 1, 1), block=(32, 1, 1), arguments=arguments,
        machine="cuda", compile=False,
    )  # fmt: skip
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        ("numbers", ["x=f32[32]", "y=i32[32,13]"]),
        ("product", ["a=f16[16,16]", "b=f16[16,8]", "c=f32[16,8]", "d=f32[16,8]"]),
    ],
)
def test_inline_assembly_has_its_bits(kernel: str, arguments: list[str]) -> None:
    report = port_file(
        HERE / "assembly.cu", kernel, grid=(1, 1, 1), block=(32, 1, 1), arguments=arguments,
        machine="cuda", compile=False,
    )  # fmt: skip
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]


@pytest.mark.parametrize("kind", ["float", "float2", "float4"])
@pytest.mark.parametrize(("kernel", "arguments"), [("turned", TURNED), ("sums", SUMS)])
def test_copies_in_the_background_have_their_bits(
    kernel: str, arguments: list[str], kind: str
) -> None:
    """The original has CUDA's own cuda_pipeline.h."""
    report = port_file(
        HERE / "copies.cu", instantiate=f"{kernel}<{kind}>", grid=(1, 1, 1), block=(64, 1, 1),
        arguments=arguments, machine="cuda", compile=False,
    )  # fmt: skip
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]
