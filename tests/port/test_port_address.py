"""Faults of memory, each planted in a kernel, and which of two checkers sees it: the watch of loads
and stores, or AddressSanitizer. Ports run under the latter too, in a process of their own."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mkport.machines.host import build
from mkport.machines.host.build import HostFault, compiler, unchecked
from mkport.port import check
from mkport.port.original import Launch, run_original
from mkport.port.port import port_file
from mkport.port.report import Report

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")
ADDRESS = pytest.mark.skipif(bool(unchecked()), reason=unchecked())

KERNEL = """
__constant__ float weights[4] = {1, 2, 3, 4};
__device__ float last(const float* p, int n) { return p[n]; }
__global__ void k(const float* x, float* y, int n, int m) {
  __shared__ float one[32], two[32];
  extern __shared__ float more[];
  const int t = threadIdx.x;
  float own[4] = {x[t], 2, 3, 4};
  one[t] = x[t], two[t] = 0, more[t] = 1;
  __syncthreads();
  float sum = own[m & 3] + last(weights, m & 3) + more[31 - t];
  /*fault*/
  y[t] = sum + one[31 - t] + two[0];
}
"""
BOTH, WATCH, ADDRESSES = ("watch", "address"), ("watch",), ("address",)
# n is 32 and m is 4, which no compiler knows.
FAULTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "past a buffer's end": ("sum += x[t + 1];", BOTH),
    "before a buffer": ("sum += x[t - 1];", BOTH),
    "far past a buffer's end": ("sum += x[(long long)n * 400000000];", BOTH),
    "a write past a buffer's end": ("y[n] = 1;", BOTH),
    "an atomic past a buffer's end": ("atomicAdd(&y[n], 1.0f);", BOTH),
    "a vector over a buffer's end": (
        "float4 v = *reinterpret_cast<const float4*>(&x[t / 4 * 4 + m]); sum += v.w;", BOTH,
    ),
    "past a shared array, into the next": ("sum += last(one, n);", BOTH),
    "past the dynamic shared memory": ("sum += more[n];", BOTH),
    "before a shared array": ("sum += last(one, t - n - 1);", BOTH),
    "past an array of its own, by its name": ("sum += own[m];", BOTH),
    "past an array of its own, by a pointer": ("sum += last(own, m);", ADDRESSES),
    "past a constant, by a pointer": ("sum += last(weights, m);", ADDRESSES),
    "a variable that is gone": (
        "const float* p = own; if (m == 4) { float here[4] = {sum, x[t], 1, 2}; p = here;\\\n"
        "sum += p[t & 3]; } sum += last(p, t & 3);", ADDRESSES,
    ),
    "a read of what nobody wrote": ("__shared__ float none[4]; sum += none[m & 3];", WATCH),
    "an access that is not aligned": (
        "float2 v = *reinterpret_cast<const float2*>(x + 1 + (m & 2)); sum += v.x + v.y;", WATCH,
    ),
    "a race": ("two[t / 2] = t; __syncthreads(); sum += two[t / 2];", WATCH),
}  # fmt: skip


def launch() -> Launch:
    x = np.arange(32, dtype=np.float32)
    names = ("x", "y", "n", "m")
    return Launch("k", (1, 1, 1), (32, 1, 1), (x, np.zeros(32, np.float32), 32, 4), 128, names)


def source(what: str) -> str:
    return KERNEL.replace("/*fault*/", FAULTS[what][0])


def test_the_page_says_who_sees_what() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/port.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (yes|no) \| (yes|no) \|$", page, re.MULTILINE)
    wanted = [
        (what, *("yes" if checker in who else "no" for checker in BOTH))
        for what, (_, who) in FAULTS.items()
    ]
    assert rows == wanted


@ADDRESS
def test_a_kernel_without_faults_is_clean_for_both() -> None:
    done = run_original(KERNEL, [launch()])
    assert done.well_defined and not done.findings and not done.unchecked


@ADDRESS
@pytest.mark.parametrize("what", FAULTS)
def test_who_sees_a_fault(what: str) -> None:
    text = source(what)
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "sum = own[" in row) + 1
    for checker in BOTH:
        done = run_original(text, [launch()], checkers=[checker])
        found = [f for f in done.findings if f.fatal and f.kind != "seeds"]
        assert bool(found) == (checker in FAULTS[what][1]), (checker, found)
        helper = next(n for n, row in enumerate(text.splitlines(), 1) if " last(" in row)
        assert all(f.line in (helper, line, line + 1) for f in found), found


def report(tmp_path: Path, text: str) -> Report:
    file = tmp_path / "k.cu"
    file.write_text(text)
    arguments = dict(zip(("x", "y", "n", "m"), launch().args, strict=True))
    return port_file(
        file, grid=(1, 1, 1), block=(32, 1, 1), shared=128, arguments=arguments, compile=False
    )


@ADDRESS
@pytest.mark.parametrize("what", [what for what, (_, who) in FAULTS.items() if who == ADDRESSES])
def test_what_only_addresses_show_is_no_defined_result(tmp_path: Path, what: str) -> None:
    done = report(tmp_path, source(what))
    assert done.verdict == "undefined" and done.exit_code == 4
    first = done.findings[0]
    assert first.code == "MK203" and first.line and "(AddressSanitizer)" in first.cause


@ADDRESS
def test_the_report_says_that_it_ran(tmp_path: Path) -> None:
    done = report(tmp_path, KERNEL)
    assert done.verdict == "ported"
    assert "also under AddressSanitizer" in str(done.as_dict())


def test_without_it_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "g++ has no AddressSanitizer here"
    for module in ("mkport.machines.host.build", "mkport.port.original"):
        monkeypatch.setattr(f"{module}.unchecked", lambda: words)
    done = report(tmp_path, KERNEL)
    assert done.verdict == "ported" and f"well defined, though {words}" in str(done.as_dict())


@pytest.fixture
def stubborn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler without AddressSanitizer."""
    path = tmp_path / "g++"
    real = compiler()
    path.write_text(
        f'#!/bin/sh\ncase "$*" in *-fsanitize=address*) exit 1;; esac\nexec {real} "$@"\n'
    )
    path.chmod(0o755)
    monkeypatch.setattr(build, "compiler", lambda: str(path))
    build.unchecked.cache_clear()
    return path


def test_a_compiler_without_it_is_found_out(stubborn: Path) -> None:
    assert unchecked() == "g++ has no AddressSanitizer here"
    build.unchecked.cache_clear()


@ADDRESS
@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("y[t + (n == 32) * 64] = sum", "heap-buffer-overflow, at `y[t"),
        ("y[t + (long long)n * 400000000] = sum", "SEGV"),
        ("__builtin_trap(); y[t] = sum", "SIGILL"),
    ],
)
def test_a_port_that_strays_is_no_port(tmp_path: Path, after: str, words: str) -> None:
    done = report(tmp_path, KERNEL)
    assert done.op is not None
    program = check.port_program(done.op)
    assert program.source.count("y[t] = sum") == 1
    program = replace(program, source=program.source.replace("y[t] = sum", after))
    arguments = dict(zip(("x", "y", "n", "m"), launch().args, strict=True)) | {"grid_x": 1}
    with pytest.raises(HostFault, match=re.escape(words)):
        check.compare(done.op, arguments, {}, program=program)


ROWS = """
__global__ void k(const float* x, float* y, int n, int m) {
  extern __shared__ float more[];
  float own[4][4] = {};
  const int t = threadIdx.x;
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) own[i][j] = x[i * 4 + j];
  more[t] = 0;
  y[t] = own[ROW][COLUMN] + more[t];
}
"""


@pytest.mark.parametrize(
    ("row", "column", "verdict"),
    [("0", "m + 3", "ported"), ("m - 1", "m", "undefined"), ("m", "0", "undefined")],
)
def test_rows_beyond_the_last_are_told_from_the_next_row(
    row: str, column: str, verdict: str, tmp_path: Path
) -> None:
    """m is 4. An index beyond a row of an array stays within it, as kernels write on purpose."""
    done = report(tmp_path, ROWS.replace("ROW", row).replace("COLUMN", column))
    assert done.verdict == (verdict if not unchecked() else "ported")
    if done.verdict == "undefined":
        assert done.findings[0].code == "MK203" and done.findings[0].line == 9
