"""What a kernel does with a pointer, on every way found so far: a write is never taken for a read.

Who waits for whom in a megakernel follows from this.
"""

from pathlib import Path

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.machines.host.build import compiler
from mkport.port.port import port_file

HEAD, *PARTS = Path(__file__).with_name("usage.txt").read_text().split("----\n")
WRITES, UPDATES, CASTS = (
    dict(line.split(" | ", 1) for line in part.splitlines()) for part in PARTS
)


def mode_of(body: str, path: Path, name: str = "y") -> str:
    path.write_text(
        f"{HEAD}__global__ void k(const float* x, float* y) {{ int i = threadIdx.x; {body} }}\n"
    )
    report = port_file(path, "k", block=(64, 1, 1), run=False, compile=False)
    (line,) = (line for line in report.steps[4].lines if line.strip().startswith(f"{name}:"))
    return line.split(":")[1].strip()


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_seen(name: str, tmp_path: Path) -> None:
    assert mode_of(WRITES[name], tmp_path / "k.cu") in ("written", "read and written")


@pytest.mark.parametrize("name", UPDATES)
def test_a_read_beside_a_write_is_seen(name: str, tmp_path: Path) -> None:
    assert mode_of(UPDATES[name], tmp_path / "k.cu") == "read and written"


@pytest.mark.parametrize("name", CASTS)
def test_a_write_through_a_pointer_to_const_is_seen(name: str, tmp_path: Path) -> None:
    assert mode_of(CASTS[name], tmp_path / "k.cu", "x") in ("written", "read and written")


def test_const_is_believed_where_nothing_drops_it(tmp_path: Path) -> None:
    for body in (
        "y[i] = ((const float4*)x)[i].x;",
        "Reads r{x}; y[i] = r.p[i]; ((float4*)y)[i].x = 1.f;",
        'asm volatile("ld.global.f32 %0, [%1];" : "=f"(y[i]) : "l"(x + i));',
        "float4 v = reinterpret_cast<const float4*>(x)[i]; y[i] = v.x;",
    ):
        assert mode_of(body, tmp_path / "k.cu", "x") == "read", body


def test_reads_and_plain_writes_are_told_apart(tmp_path: Path) -> None:
    assert mode_of("x[i] > 0 ? 1.f : y[i];", tmp_path / "k.cu") == "read"
    assert mode_of("y[i] = x[i];", tmp_path / "k.cu") == "written"


def test_a_buffer_that_is_written_is_not_immutable(tmp_path: Path) -> None:
    file = tmp_path / "k.cu"
    file.write_text(
        "__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }\n"
    )
    with pytest.raises(UserError, match="--immutable y: k writes it"):
        port_file(file, "k", block=(64, 1, 1), immutable=["y"], run=False, compile=False)
    report = port_file(file, "k", block=(64, 1, 1), immutable=["x"], run=False, compile=False)
    assert any("x: read, and never written" in line for line in report.steps[4].lines)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler to run the kernel with")
def test_what_was_written_after_all_is_found_when_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "k.cu"
    file.write_text(
        "__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }\n"
    )
    given = {"x": np.ones(64, np.float32), "y": np.zeros(64, np.float32)}
    taken = {"x": "read", "y": "read"}  # as if the text had been misread
    monkeypatch.setattr("mkport.port.fitted.modes", lambda *_: dict(taken))
    report = port_file(file, "k", grid=(1, 1, 1), block=(64, 1, 1), arguments=given, compile=False)
    assert [f.code for f in report.findings] == ["MK180"]
    assert "k writes y, which its text seems only to read" in report.findings[0].cause
