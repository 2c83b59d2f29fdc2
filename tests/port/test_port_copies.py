"""Copies in the background: what they bring is there once they are waited for, and not before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.machines.host.build import compiler
from mkport.port.port import port_file
from mkport.port.report import Report
from mkport.port.run import run_port

FILE = Path(__file__).with_name("copies.cu")
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
BLOCK: dict[str, Any] = {"grid": (1, 1, 1), "block": (64, 1, 1), "compile": False}
WIDTHS = [("float", 1), ("float2", 2), ("float4", 4)]
TURNED, SUMS = ["x=f32[512]", "y=f32[512]"], ["x=f32[768]", "y=f32[64]", "tiles=3", "last=40"]


@pytest.mark.parametrize(("kind", "width"), WIDTHS)
def test_copies_of_4_8_and_16_bytes(kind: str, width: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 64, width), np.float32)
    given = {"x": x, "y": np.zeros_like(x)}
    report = port_file(FILE, instantiate=f"turned<{kind}>", arguments=given, **BLOCK)
    assert report.verdict == "ported" and report.ran and report.op is not None
    y = run_port(report.op, {**given, "grid_x": 1})["y"]
    assert y.tobytes() == x[:, ::-1].tobytes()


@pytest.mark.parametrize(("kind", "width"), WIDTHS)
def test_pipeline_primitives_and_what_they_fill_with_zeros(kind: str, width: int) -> None:
    x = np.random.default_rng(1).standard_normal((3, 64, width)).astype(np.float32).round(1)
    given = {"x": x, "y": np.zeros(64, np.float32), "tiles": 3, "last": 40}
    report = port_file(FILE, instantiate=f"sums<{kind}>", arguments=given, **BLOCK)
    assert report.verdict == "ported" and report.ran and report.op is not None
    assert "mk_drain_copies()" in report.files["task.cuh"]
    y = run_port(report.op, {**given, "grid_x": 1})["y"]
    x[2, 40:] = 0
    wanted = np.einsum("itw,i->t", x[:, ::-1].astype(np.float64), [1, 2, 3])
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4)


def edited(folder: Path, kernel: str, given: list[str], before: str, after: str) -> Report:
    text = FILE.read_text()
    assert text.count(before) == 1
    path = folder / "k.cu"
    path.write_text(text.replace(before, after))
    return port_file(path, instantiate=kernel, arguments=given, **BLOCK)


@pytest.mark.parametrize("kind", ["float", "float4"])
@pytest.mark.parametrize(
    ("kernel", "given", "before", "after"),
    [
        ("turned", TURNED, "WAIT(1);", ";"),
        ("turned", TURNED, "WAIT(1);", "WAIT(2);"),
        ("turned", TURNED, "WAIT(0);", ";"),
        ("turned", TURNED, "COMMIT();\n  WAIT(1)", "WAIT(1)"),
        ("turned", TURNED, "__syncthreads();  // the second", ";"),
        ("turned", TURNED, "  WAIT(0);\n  __syncthreads();", "  __syncthreads();\n  WAIT(0);"),
        ("sums", SUMS, "__pipeline_wait_prior(1);", "__pipeline_wait_prior(2);"),
        ("sums", SUMS, "__pipeline_wait_prior(0);", ";"),
        ("sums", SUMS, "__syncthreads();  // a tile is there", ";"),
        ("sums", SUMS, "__syncthreads();  // and read", ";"),
    ],
)  # fmt: skip
def test_a_wait_or_a_barrier_too_few_is_found(
    kernel: str, given: list[str], before: str, after: str, kind: str, tmp_path: Path
) -> None:
    report = edited(tmp_path, f"{kernel}<{kind}>", given, before, after)
    assert report.verdict == "undefined"
    raced = [f for f in report.findings if f.code in ("MK201", "MK202")]
    assert raced and all(f.file == "k.cu" and f.line > 10 for f in raced), raced


def test_what_is_copied_may_not_be_written_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(
        "#include <cuda_pipeline.h>\n"
        "__global__ void k(float* x, float* y) {\n"
        "  __shared__ float s[64];\n"
        "  const int t = threadIdx.x;\n"
        "  __pipeline_memcpy_async(s + t, x + t, 4);\n"
        "  __pipeline_commit();\n"
        "  x[t] = 1;\n"
        "  __pipeline_wait_prior(0);\n"
        "  y[t] = s[t];\n"
        "}\n"
    )
    report = port_file(path, arguments=["x=f32[64]", "y=f32[64]"], **BLOCK)
    (raced,) = (f for f in report.findings if f.code == "MK201")
    assert raced.line == 7 and "may still read: it has not been waited for" in raced.cause
    assert raced.fix.startswith("Wait for the copy")
