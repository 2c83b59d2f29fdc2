"""What is wrong with a kernel is found in a run on a CPU, every time, and with its line."""

from typing import Any

import numpy as np
import pytest

from mkport.machines.host.build import compiler
from mkport.port.original import Finding, Launch, Original, run_original

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")

MATMUL = r"""
#define TILE 8
__global__ void matmul(const float* __restrict__ a, const float* b, float* c, int n) {
  __shared__ float left[TILE][TILE];
  __shared__ float right[TILE][TILE];
  const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0;
  /*start*/
  for (int k0 = 0; k0 < n; k0 += TILE) {
    const int i = k0 + threadIdx.x, j = k0 + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < n && i < n ? a[row * n + i] : 0;
    right[threadIdx.y][threadIdx.x] = column < n && j < n ? b[j * n + column] : 0;
    __syncthreads();  // loaded
    for (int k = 0; k < TILE; k++) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
    __syncthreads();  // used
  }
  if (row < n && column < n) c[row * n + column] = sum;
}
"""
EDITS: dict[str, tuple[str, str, str, str]] = {
    "no barrier before the next tile": ("__syncthreads();  // used", ";", "race", "left["),
    "no barrier after loading": ("__syncthreads();  // loaded", ";", "race", "right["),
    "reads the output": ("/*start*/", "sum += c[0];", "uninitialised", "sum += c[0];"),
    "one row too many": (
        "row < n && column < n) c", "row <= n && column < n) c", "out of bounds", "c[row",
    ),
    "a wrong loop bound": ("k < TILE", "k <= TILE", "out of bounds", "sum +="),
    "vectors from anywhere": (
        "/*start*/",
        "const float4 v = *reinterpret_cast<const float4*>(a + 1); sum += v.x + v.w;",
        "misaligned", "float4",
    ),
    "two barriers for one": (
        "__syncthreads();  // used",
        "if (threadIdx.y & 1) __syncthreads();\nelse __syncthreads();", "divergent barrier", "sync",
    ),
    "a warp waits for lanes elsewhere": (
        "__syncthreads();  // used", "if (threadIdx.y & 1) __syncwarp(); else __syncthreads();",
        "deadlock", "",
    ),
    "different meetings in a warp": (
        "/*start*/", "if (threadIdx.x & 1) __syncwarp(); else __ballot_sync(~0u, 1);",
        "divergent barrier", "",
    ),
    "spins on another block": (
        "/*start*/", "while (*(volatile float*)(c + 17) != 5);", "time limit", "while (",
    ),
    "a wild pointer": ("/*start*/", "sum += *(const float*)(0x10000);", "crash", "0x10000"),
    "divides by zero": ("/*start*/", "sum += 7 / (n - 20);", "crash", "7 / (n"),
    "an assertion": ("/*start*/", "assert(n == 19);", "crash", ""),
    "registers that hold nothing": (
        "/*start*/", "float k[64];\nfor (int i = 1; i < n; i++) k[i] = i;\nsum += k[n % 4];",
        "seeds", "",
    ),
}  # fmt: skip


def launch(source: str, n: int = 20, limit_s: float = 20.0) -> Original:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    c = np.zeros((n, n), np.float32)
    blocks = -(-n // 8)
    call = Launch(
        "matmul", (blocks, blocks, 1), (8, 8, 1), (a, b, c, n), names=("a", "b", "c", "n")
    )
    return run_original(source, [call], unfilled=[c], limit_s=limit_s)


def of_kind(found: Original, kind: str) -> list[Finding]:
    return [finding for finding in found.findings if finding.kind == kind]


def test_a_good_kernel_has_no_findings() -> None:
    found = launch(MATMUL)
    assert found.well_defined and not found.findings
    a, b, c = found.outputs
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("what", EDITS)
def test_a_fault_is_found_with_its_line(what: str) -> None:
    before, after, kind, place = EDITS[what]
    assert before in MATMUL
    source = MATMUL.replace(before, after)
    found = launch(source, limit_s=1.0)
    assert not found.well_defined
    hits = of_kind(found, kind)
    assert hits, [str(finding) for finding in found.findings]
    lines = source.splitlines()
    if place:
        assert any(hit.line and place in lines[hit.line - 1] for hit in hits), hits
    assert all(hit.fatal for hit in hits)


def test_a_race_names_both_lines() -> None:
    found = launch(MATMUL.replace("__syncthreads();  // used", ";"))
    lines = MATMUL.splitlines()
    hits = of_kind(found, "race")
    assert hits
    for hit in hits:
        texts = {lines[line - 1].split()[0] for line in (hit.line, hit.other)}
        assert texts in ({"for", "left[threadIdx.y][threadIdx.x]"},
                         {"for", "right[threadIdx.y][threadIdx.x]"})  # fmt: skip
        assert f"in line {hit.other}" in hit.text


def test_leaving_early_is_said_but_is_no_fault_of_the_original() -> None:
    found = launch(MATMUL.replace("/*start*/", "if (row >= 24) return;"), n=20)
    assert found.well_defined and not found.findings  # blocks leave as one
    source = (
        "__global__ void k(float* x) { if (threadIdx.x > 40) return; __syncthreads(); *x = 1; }"
    )
    call = Launch("k", (1, 1, 1), (64, 1, 1), (np.zeros(1, np.float32),))
    found = run_original(source, [call])
    (hit,) = found.findings
    assert hit.kind == "early exit" and not hit.fatal and found.well_defined
    assert "ends after 0 barriers" in hit.text and hit.line == 1


REDUCE = r"""
__global__ void reduce(const float* x, float* y) {
  __shared__ KIND float s[64];
  const int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    for (int by = 32; by; by >>= 1) {
      const float other = s[t + by > 63 ? t : t + by];
      SYNC
      s[t] += other;
      SYNC
    }
  }
  if (t == 0) *y = s[0];
}
"""


@pytest.mark.parametrize(
    ("kind", "sync", "good"),
    [("", "__syncwarp();", True), ("volatile", "", False), ("", "", False)],
)
def test_lanes_of_a_warp_do_not_run_in_step(kind: str, sync: str, good: bool) -> None:
    source = REDUCE.replace("KIND", kind).replace("SYNC", sync)
    x, y = np.arange(64, dtype=np.float32), np.zeros(1, np.float32)
    found = run_original(source, [Launch("reduce", (1, 1, 1), (64, 1, 1), (x, y))])
    assert found.well_defined is good, found.findings
    if good:
        assert found.outputs[1] == x.sum()
    else:
        assert of_kind(found, "race")


def pairs(body: str, **options: Any) -> Original:
    x = np.array([1e8, 1.0, -1e8, 1e-3], np.float32)
    y = np.zeros(4, np.float32)
    source = f"__global__ void k(const float* x, float* y) {{ {body} }}"
    return run_original(source, [Launch("k", (4, 1, 1), (32, 1, 1), (x, y))], **options)


def test_blocks_race_for_a_place() -> None:
    found = pairs("if (threadIdx.x == 0) y[0] = blockIdx.x;")
    assert of_kind(found, "race") and not found.equal
    assert "block" in of_kind(found, "race")[0].text


def test_all_threads_may_write_the_same() -> None:
    assert not pairs("y[0] = 3;").findings


def test_sums_by_atomics_depend_on_the_order() -> None:
    found = pairs("if (threadIdx.x == 0) atomicAdd(y, x[blockIdx.x]);", seeds=8)
    assert [hit.kind for hit in found.findings] == ["float atomics", "seeds"]
    assert not found.equal and not found.findings[0].fatal
    assert not pairs("atomicAdd(reinterpret_cast<int*>(y), 1);").findings


def test_the_same_findings_every_time() -> None:
    source = MATMUL.replace("__syncthreads();  // used", ";")
    assert launch(source).findings == launch(source).findings


def test_what_nobody_writes_stays_as_the_caller_had_it() -> None:
    source = "__global__ void k(float* x) { if (threadIdx.x % 2) x[threadIdx.x] = 1; }"
    x = np.full(8, 5, np.float32)
    found = run_original(source, [Launch("k", (1, 1, 1), (8, 1, 1), (x,))], unfilled=[x])
    assert found.well_defined and list(found.outputs[0]) == [5, 1] * 4
