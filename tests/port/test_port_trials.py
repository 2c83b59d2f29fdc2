"""Runs on made-up arguments: what they found, and whether equal bits mean anything."""

from pathlib import Path

import numpy as np
import pytest

from mkport.machines.host.build import compiler
from mkport.port.kernel import read_kernel
from mkport.port.outcome import asked_for, says_little
from mkport.port.port import port_file
from mkport.port.report import Report
from mkport.port.unit import Unit

needs_compiler = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
HEAD = "__global__ void k(const float* x, float* y, int n) {\n"


def port(tmp_path: Path, body: str, **options: object) -> tuple[Report, list[str]]:
    path = tmp_path / "k.cu"
    path.write_text(HEAD + body + "\n}\n")
    report = port_file(path, block=(64, 1, 1), compile=False, **options)  # type: ignore[arg-type]
    return report, [*report.steps[10].lines, *report.steps[11].lines]


@needs_compiler
def test_equal_bits_of_a_kernel_that_did_nothing_are_no_proof(tmp_path: Path) -> None:
    report, lines = port(tmp_path, "  if (n > 5000) y[threadIdx.x] = x[threadIdx.x];")
    assert report.verdict == "ported" and not report.ran
    assert report.steps[10].state == "warned"
    assert "but that says little: it changed no element of y. Give real arguments" in lines[-2]
    assert lines[-1] == "ported, but run on nothing that tells much"
    given = ["x=f32[64]", "y=f32[64]", "n=6000"]
    report, lines = port(tmp_path, "  if (n > 5000) y[threadIdx.x] = x[threadIdx.x];",
                         arguments=given)  # fmt: skip
    assert report.ran and lines[-1] == "ported"


@needs_compiler
def test_trials_go_on_until_one_tells_something(tmp_path: Path) -> None:
    report, lines = port(tmp_path, "  y[threadIdx.x] = n == 16 ? x[threadIdx.x] : 0.0f;")
    assert report.ran and any("made-up arguments n=16" in line for line in lines)


@needs_compiler
def test_what_did_not_fit_is_told_with_the_way_to_give_what_does(tmp_path: Path) -> None:
    report, lines = port(tmp_path, "  y[0] = x[threadIdx.x * 1000000 + n];")
    assert report.verdict == "ported" and not report.ran and report.exit_code == 0
    assert lines[0] == (
        "No made-up arguments fit k. Of 6 trials: 6 times it crashed in k.cu:2. Give the real "
        "ones, and the bits are compared: --arg 'x=f32[SIZES]' --arg 'y=f32[SIZES]' --arg "
        "'n=NUMBER'"
    )


UNDEFINED = {  # body, code: whatever the arguments
    "one element for all": ("  if (threadIdx.x < n) y[0] = x[threadIdx.x];", "MK201"),
    "a neighbour's element": (
        "  const int i = threadIdx.x; if (i < n - 1) y[i] = y[i] + y[i + 1];", "MK201"),
    "shared memory that a part wrote": (
        "  __shared__ float s[64];\n  if (threadIdx.x < 60) s[threadIdx.x] = x[threadIdx.x];\n"
        "  __syncthreads();\n  y[threadIdx.x] = s[threadIdx.x];", "MK202"),
    "an element that a local array lacks": (
        "  float a[4];\n  for (int i = 0; i <= 4; i++) a[i] = x[i];\n"
        "  y[threadIdx.x] = a[threadIdx.x & 3];", "MK203"),
    "shared memory that nobody wrote": (
        "  __shared__ float s[64];\n  y[threadIdx.x] = x[threadIdx.x] + s[threadIdx.x];", "MK202"),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("what", UNDEFINED)
def test_what_no_argument_mends_is_not_well_defined(what: str, tmp_path: Path) -> None:
    body, code = UNDEFINED[what]
    report, _ = port(tmp_path, body)
    assert report.verdict == "undefined" and report.exit_code == 4
    first = report.refusals[0]
    assert first.code == code
    assert first.line == (3 if code == "MK203" else 1 + len(body.splitlines()))


@needs_compiler
def test_another_row_of_an_array_is_no_fault_and_open_arithmetic_a_warning(tmp_path: Path) -> None:
    rows = (
        "  __shared__ int s[4][16];\n  s[0][threadIdx.x] = 1 << (threadIdx.x + 8);\n"
        "  __syncthreads();\n  y[threadIdx.x] = s[3][threadIdx.x & 15];"
    )
    report, _ = port(tmp_path, rows)
    assert report.verdict == "ported" and report.ran
    (warned,) = report.findings
    assert warned.code == "MK307" and warned.line == 3 and "shifts by as many bits" in warned.cause
    plain, _ = port(tmp_path, rows.replace("1 << (threadIdx.x + 8)", "n / int(threadIdx.x + 1)"))
    assert plain.ran and not plain.findings


@needs_compiler
def test_what_arguments_may_be_to_blame_for_is_not_passed(tmp_path: Path) -> None:
    """Two threads may be sent to one place by made-up indices, and not by real ones."""
    path = tmp_path / "k.cu"
    path.write_text(
        "__global__ void k(const float* x, const int* to, float* y) {\n"
        "  y[to[threadIdx.x]] = x[threadIdx.x];\n}\n"
    )
    report = port_file(path, block=(64, 1, 1), compile=False)
    assert report.verdict == "refused" and report.exit_code == 3
    (finding,) = report.refusals
    assert finding.code == "MK181" and finding.line == 2
    assert "6 times it raced in k.cu:2" in finding.cause
    assert "judged on them: --arg 'x=f32[SIZES]' --arg 'to=i32[SIZES]'" in finding.fix
    np.save(tmp_path / "to.npy", np.arange(64, dtype=np.int32)[::-1].copy())
    given = ["x=f32[64]", f"to={tmp_path / 'to.npy'}", "y=f32[64]"]
    report = port_file(path, block=(64, 1, 1), compile=False, arguments=given)
    assert report.verdict == "ported" and report.ran


@needs_compiler
def test_a_fault_on_other_arguments_than_those_compared_on_is_told(tmp_path: Path) -> None:
    report, lines = port(tmp_path, "  y[threadIdx.x % (n < 100 ? n : 7)] = 1.0f + x[threadIdx.x];")
    assert report.verdict == "ported" and report.ran and report.steps[10].state == "warned"
    assert any("but on other made-up arguments, 2 times it raced in k.cu:2." in at for at in lines)


def test_little_is_nan_zero_or_nothing() -> None:
    unit = Unit(HEAD + "}")
    kernel = read_kernel(unit, unit.kernels[0], ())
    modes = {"x": "read", "y": "write"}
    old = np.arange(1, 5, dtype=np.float32)

    def little(new: list[float]) -> str:
        outputs = {"x": old, "y": np.array(new, np.float32)}
        return says_little(kernel, modes, {"x": old, "y": old, "n": 4}, outputs)

    nan = float("nan")
    assert little([1, 2, 3, 4]) == "it changed no element of y"
    assert little([1, 0, 0, 4]) == "it left zero in all 2 changed elements of y"
    assert little([nan, nan, 3, 4]) == "it left NaN in all 2 changed elements of y"
    assert little([nan, 5, 3, 4]) == ""
    assert says_little(kernel, {"x": "read"}, {"x": old, "n": 1}, {"x": old}) == (
        "it was given nothing to write to"
    )
    assert asked_for(kernel).endswith("--arg 'n=NUMBER'")


def test_a_block_of_one_thread_is_analysed(tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text(HEAD + "  for (int i = 0; i < n; i++) y[i] = x[i];\n}\n")
    report = port_file(path, block=(1, 1, 1), run=False, compile=False)
    assert report.verdict == "ported"
