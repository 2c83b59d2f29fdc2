"""Barriers that threads come to apart, in every disguise found so far: each is refused.

Each body is the least that hides a thread-dependent condition from an analysis. What an analysis
misses here slips out of step on a GPU, silently.
"""

from pathlib import Path

import pytest

from mkport.port.port import port_file

HEAD, LINES = Path(__file__).with_name("disguises.txt").read_text().split("----\n")
LIBRARIES = "#include <cub/cub.cuh>\n#include <cooperative_groups.h>\n"
BODIES = dict(line.split(" | ", 1) for line in LINES.splitlines())  # S: a barrier of the block


@pytest.mark.parametrize("name", BODIES)
def test_a_barrier_in_disguise_is_refused(name: str, tmp_path: Path) -> None:
    body = " ".join("__syncthreads();" if w == "S" else w for w in BODIES[name].split(" "))
    path = tmp_path / "k.cu"
    libraries = LIBRARIES if "cooperative_groups" in body or "cub::" in body else ""
    path.write_text(f"{libraries}{HEAD}__global__ void k(float* x) {{ {body} }}\n")
    block = (16, 4, 1) if name == "dim2" else (64, 1, 1)
    report = port_file(path, "k", block=block, run=False, compile=False)
    assert report.verdict == "refused", BODIES[name]


def test_what_only_looks_like_one_is_ported(tmp_path: Path) -> None:
    for body in (
        "int v = 0; putr(v); int w = blockIdx.x; if (w) __syncthreads(); x[v] = 1;",
        "Pt p = mk(3); if (p.a) __syncthreads(); x[threadIdx.x] = 1;",
        "S2 s(blockIdx.x); if (s.get()) __syncthreads(); x[threadIdx.x] = 1;",
        "W<int> w; w.set(gridDim.x); if (w.get()) __syncthreads(); x[threadIdx.x] = 1;",
        "if (threadIdx.x < 64) {} __syncthreads(); x[threadIdx.x] = 1;",
        "auto f = [&](int i) { meet(); x[i] = 1; }; f(threadIdx.x); f(blockIdx.x);",
        "place(x)[threadIdx.x] = 1; spot(x, 3) = sizeof(meetr());",
    ):
        path = tmp_path / "k.cu"
        path.write_text(f"{HEAD}__global__ void k(float* x) {{ {body} }}\n")
        report = port_file(path, "k", block=(64, 1, 1), run=False, compile=False)
        assert report.verdict == "ported", (body, [str(f) for f in report.refusals])
