"""What a kernel does with a pointer, on every way found so far: a write is never taken for a read.

Who waits for whom in a megakernel follows from this.
"""

from pathlib import Path

import pytest

from mkport.port.port import port_file

HEAD, *PARTS = Path(__file__).with_name("usage.txt").read_text().split("----\n")
WRITES, UPDATES = (dict(line.split(" | ", 1) for line in part.splitlines()) for part in PARTS)


def mode_of(body: str, path: Path) -> str:
    path.write_text(
        f"{HEAD}__global__ void k(const float* x, float* y) {{ int i = threadIdx.x; {body} }}\n"
    )
    report = port_file(path, "k", block=(64, 1, 1), run=False, compile=False)
    (line,) = (line for line in report.steps[4].lines if line.strip().startswith("y:"))
    return line.split(":")[1].strip()


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_seen(name: str, tmp_path: Path) -> None:
    assert mode_of(WRITES[name], tmp_path / "k.cu") in ("written", "read and written")


@pytest.mark.parametrize("name", UPDATES)
def test_a_read_beside_a_write_is_seen(name: str, tmp_path: Path) -> None:
    assert mode_of(UPDATES[name], tmp_path / "k.cu") == "read and written"


def test_reads_and_plain_writes_are_told_apart(tmp_path: Path) -> None:
    assert mode_of("x[i] > 0 ? 1.f : y[i];", tmp_path / "k.cu") == "read"
    assert mode_of("y[i] = x[i];", tmp_path / "k.cu") == "written"
