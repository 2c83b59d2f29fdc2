"""Inline PTX: what is known of it runs on a CPU, the rest is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.machines.host.build import compiler
from mkport.port.port import port_file
from mkport.port.ptx import UNKNOWN, host_code
from mkport.port.run import run_port

FILE = Path(__file__).with_name("assembly.cu")
needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
WARP: dict[str, Any] = {"grid": (1, 1, 1), "block": (32, 1, 1)}


@needs_compiler
def test_each_instruction_does_what_its_manual_says() -> None:
    x = np.linspace(-3, 5, 32, dtype=np.float32)
    given = {"x": x, "y": np.zeros((32, 13), np.int32)}
    report = port_file(FILE, "numbers", arguments=given, **WARP)
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]
    assert report.op is not None
    y = run_port(report.op, {**given, "grid_x": 1})["y"]
    i = np.arange(32)
    a, b = np.int64(0x0FF0F00F), np.int64(0x33333333)
    chosen = (a & b) | (~a & i)
    half = np.stack([np.float16(2) * np.float16(2) + np.float16(2) * np.ones(32, np.float16),
                     x.astype(np.float16) + np.float16(1)], axis=1)  # fmt: skip
    columns = {
        0: chosen, 1: 0x05000400 + i * 0 + ((0x04 + i) << 8) - 0x0400 + 0x00010000,
        2: ((0xF80 + i) >> 4 & 255).astype(np.uint8).view(np.int8), 3: (0xF80 + i) >> 4 & 255,
        4: 0x12345078 | (i & 15) << 8, 5: np.where(i > 20, 7, 9), 6: (i - 16) * -3 + 5,
        7: (0xFFFFFFFF - i) * 3 >> 32, 8: np.rint(x * np.float32(2.5)),
        9: half.view(np.int32)[:, 0],
        10: (i ^ 5) ** 2, 11: i,
    }  # fmt: skip
    for column, wanted in columns.items():
        np.testing.assert_array_equal(y[:, column], wanted, str(column))
    np.testing.assert_allclose(y[:, 12].view(np.float32), np.exp2(x), rtol=1e-6)


@needs_compiler
def test_copies_matrices_and_a_product() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    c, d = rng.standard_normal((16, 8), np.float32), np.zeros((16, 8), np.float32)
    given = {"a": a, "b": b, "c": c, "d": d}
    report = port_file(FILE, "product", arguments=given, **WARP)
    assert report.verdict == "ported" and report.ran, [str(f) for f in report.findings]
    assert report.op is not None
    got = run_port(report.op, {**given, "grid_x": 1})["d"]
    np.testing.assert_allclose(got, a.astype(np.float64) @ b + c, rtol=1e-5, atol=1e-5)
    assert "cp.async.cg.shared.global" in report.files["task.cuh"]


@needs_compiler
def test_a_run_that_comes_to_an_unknown_instruction_says_so() -> None:
    x = np.linspace(-3, 5, 32, dtype=np.float32)
    given = {"x": x, "y": np.zeros(32, np.float32), "n": 3}
    assert port_file(FILE, "unknown", arguments=given, compile=False, **WARP).ran
    report = port_file(FILE, "unknown", arguments={**given, "n": 4}, compile=False, **WARP)
    assert report.verdict == "ported" and not report.ran
    said = " ".join(report.steps[10].lines)
    assert "inline PTX that no CPU runs here at assembly.cu:71. Nothing was run" in said


@pytest.mark.parametrize(
    "code",
    [
        "add.cc.u32 %0, %0, %0;", "ex2.approx.f16x2 %0, %0;", "bra done;", "mov.u32 %0, %smid;",
        "ld.global.v8.b32 {%0}, [%0];", "lop3.b32 %0, %0, %0;",
        "cvt.rn.satfinite.e4m3x2.f32 %0, %0;",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0}, {%0}, {%0}, {%0};",
        "add.u32 x, %0, 1;",
        "prmt.b32.f4e %0, %0, %0, %0;", "shfl.up.b32 %0, %0, 1, 0;", "mov.b32 %0, symbol;",
        "cp.async.bulk.shared.global [%0], [%0], 16;", "setp.lt.and.f32 %0, %0, %0, %0;",
    ],
)  # fmt: skip
def test_what_is_not_known_in_full_is_unknown(code: str) -> None:
    assert host_code(f'asm volatile("{code}" : "+r"(x));') == UNKNOWN.format(line=0)


def test_text_that_is_no_string_is_unknown() -> None:
    assert host_code('asm("mov.u32 %0, 3" NUMBER ";" : "=r"(x));') == UNKNOWN.format(line=0)
    assert host_code('asm("mov.u32 %0, %1;" : "=r"(x) : "C"(text));') == UNKNOWN.format(line=0)
    assert host_code('asm("mov.u32 %0, 3;" : "=r"(x));') != UNKNOWN.format(line=0)
