"""What an unmodified kernel computes on a CPU: indices, shared memory, warps, types, launches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.errors import UserError
from mkport.machines.host.build import compiler
from mkport.port.original import Launch, NotBuilt, Original, run_original

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the host build")

FEATURES = r"""
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>
#include <cub/cub.cuh>
namespace cg = cooperative_groups;
#define CEIL(a, b) (((a) + (b) - 1) / (b))

__device__ int blocks_done;
__constant__ float factors[2] = {2.0f, 3.0f};

namespace inner {
template <typename T, int TILE>
__global__ void __launch_bounds__(TILE * TILE) transpose(const T* __restrict__ x, T* y, int rows,
                                                         int columns) {
  extern __shared__ __align__(16) unsigned char raw[];
  T* tile = reinterpret_cast<T*>(raw);
  int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  const int here = threadIdx.y * (TILE + 1) + threadIdx.x;
  if (row < rows && column < columns) tile[here] = x[row * columns + column];
  __syncthreads();
  row = blockIdx.x * TILE + threadIdx.y, column = blockIdx.y * TILE + threadIdx.x;
  const int there = threadIdx.x * (TILE + 1) + threadIdx.y;
  if (row < columns && column < rows) y[row * rows + column] = tile[there];
}
}  // namespace inner

extern "C" __global__ void warps(const float* x, float* y, unsigned* votes) {
  const int t = threadIdx.x;
  float sum = x[t];
  for (int by = 16; by; by >>= 1) sum += __shfl_down_sync(0xffffffff, sum, by);
  if (t % 32 == 0) y[t / 32] = sum;
  const unsigned half = t % 32 < 16 ? 0x0000ffff : 0xffff0000;
  y[4 + t] = __shfl_xor_sync(half, x[t], 1, 16);
  votes[t] = __ballot_sync(half, x[t] > 0) ^ __match_any_sync(~0u, t % 3);
  votes[t] += __reduce_add_sync(~0u, unsigned(t)) + __popc(__syncthreads_count(t < 5));
}

__global__ void last(const float* x, float* partial, float* y, int n) {
  typedef cub::BlockReduce<float, 64> Reduce;
  __shared__ typename Reduce::TempStorage storage;
  __shared__ bool is_last;
  float sum = 0;
  for (int i = blockIdx.x * 64 + threadIdx.x; i < n; i += gridDim.x * 64) sum += x[i] * factors[1];
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    is_last = atomicAdd(&blocks_done, 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (is_last && threadIdx.x == 0) {
    float all = 0;
    for (int i = 0; i < gridDim.x; i++) all += partial[i];
    *y = all;
  }
}

__global__ void volume(int* y) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, z = blockIdx.z * blockDim.z + threadIdx.z;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  y[(z * gridDim.y * blockDim.y + row) * gridDim.x * blockDim.x + x] = 100 * z + 10 * row + x;
}

__global__ void odd_block(float* x) {
  x[threadIdx.x] = __shfl_sync(~0u, x[threadIdx.x], 2) + __popc(__ballot_sync(~0u, 1));
}

struct Pair {
  float value;
  int place;
  __device__ Pair() {}
  __device__ Pair(float value, int place) : value(value), place(place) {}
};
__global__ void turned(float* x) {
  __shared__ Pair pairs[64];
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
  pairs[threadIdx.x] = Pair(x[threadIdx.x], tile.meta_group_rank());
  block.sync();
  const Pair& other = pairs[63 - threadIdx.x];
  x[threadIdx.x] = other.value + other.place;
}

__global__ void types(const half* h, __nv_bfloat16* b, float4* f, long long wide, double d, int n) {
  auto tile = cg::tiled_partition<32>(cg::this_thread_block());
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float most = cg::reduce(tile, i < n ? __half2float(h[i]) : -INFINITY, cg::greater<float>());
  if (i >= n) return;
  b[i] = __float2bfloat16(__half2float(h[i]) + most);
  f[i] = make_float4(float(wide), float(d), __ldg(&h[i]), rsqrtf(4.0f) + max(i, 3));
}
"""


def run(*launches: Launch, source: str = FEATURES, **options: Any) -> Original:
    found = run_original(source, launches, **options)
    assert found.well_defined, [str(finding) for finding in found.findings]
    return found


def test_a_template_in_a_namespace_with_dynamic_shared_memory() -> None:
    x = np.arange(20 * 13, dtype=np.float64).reshape(20, 13)
    y = np.zeros((13, 20))
    call = Launch("inner::transpose<double, 8>", (2, 3, 1), (8, 8, 1), (x, y, 20, 13), 8 * 9 * 8)
    assert (run(call, unfilled=[y]).outputs[1] == x.T).all()
    assert not y.any()  # the caller's arrays stay as they are


def test_collectives_of_a_warp_and_of_parts_of_it() -> None:
    x = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    y, votes = np.zeros(4 + 128, np.float32), np.zeros(128, np.uint32)
    _, y, votes = run(Launch("warps", (1, 1, 1), (128, 1, 1), (x, y, votes))).outputs
    np.testing.assert_allclose(y[:4], x.reshape(4, 32).sum(axis=1), rtol=1e-5)
    assert (y[4:].reshape(-1, 2) == x.reshape(-1, 2)[:, ::-1]).all()
    t = np.arange(128)
    half = (t % 32) // 16
    ballot = [
        sum(1 << (u % 32) for u in t if u // 32 == v // 32 and half[u] == half[v] and x[u] > 0)
        for v in t
    ]
    match = [sum(1 << (u % 32) for u in t if u // 32 == v // 32 and u % 3 == v % 3) for v in t]
    sums = t.reshape(4, 32).sum(axis=1).repeat(32) + 2  # 5 threads: two bits
    assert (votes == (np.array(ballot) ^ np.array(match)) + sums).all()


def test_the_last_block_reads_what_the_others_wrote_behind_a_fence() -> None:
    """Also: a device variable starts afresh in every run."""
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    partial, y = np.zeros(5, np.float32), np.zeros(1, np.float32)
    call = Launch("last", (5, 1, 1), (64, 1, 1), (x, partial, y, 1000))
    np.testing.assert_allclose(run(call, unfilled=[partial, y]).outputs[2], 3 * x.sum(), rtol=1e-4)


def test_three_dimensions_and_odd_sizes() -> None:
    y = np.zeros((4, 6, 9), np.int32)
    (y,) = run(Launch("volume", (3, 2, 2), (3, 3, 2), (y,)), unfilled=[y]).outputs
    z, row, x = np.indices(y.shape)
    assert (y == 100 * z + 10 * row + x).all()


def test_storage_types_and_scalars_of_every_width() -> None:
    h = np.random.default_rng(2).standard_normal(70).astype(np.float16)
    b, f = np.zeros(70, np.uint16), np.zeros((70, 4), np.float32)
    args = (h, b, f, np.int64(1 << 40), np.float64(0.1), 70)
    _, b, f = run(Launch("types", (1, 1, 1), (96, 1, 1), args)).outputs
    assert (f[:, 0] == 2.0**40).all() and (f[:, 1] == np.float32(0.1)).all()
    assert (f[:, 2] == h).all() and (f[:, 3] == 0.5 + np.maximum(np.arange(70), 3)).all()
    most = np.array([h[i : i + 32].max() for i in (0, 32, 64)]).repeat(32)[:70].astype(np.float32)
    wanted = h.astype(np.float32) + most
    assert np.abs((b.astype(np.uint32) << 16).view(np.float32) - wanted).max() < 0.02


def test_a_warp_that_is_not_whole_meets_with_the_lanes_it_has() -> None:
    x = np.arange(40, dtype=np.float32)
    (y,) = run(Launch("odd_block", (1, 1, 1), (40, 1, 1), (x,))).outputs
    assert y.tolist() == [2 + 32] * 32 + [34 + 8] * 8


def test_structs_with_constructors_in_shared_memory_and_tiles_of_a_warp() -> None:
    x = np.arange(64, dtype=np.float32)
    (y,) = run(Launch("turned", (1, 1, 1), (64, 1, 1), (x,))).outputs
    assert (y == (x + x // 16)[::-1]).all()


def test_launches_follow_each_other_and_share_arrays() -> None:
    source = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }"
    x = np.ones(8, np.float32)
    call = Launch("twice", (1, 1, 1), (8, 1, 1), (x,))
    assert (run(call, call, call, source=source).outputs[0] == 8).all()


def test_arguments_that_do_not_fit() -> None:
    y = np.zeros(12, np.int32)
    for args, said in (
        ((y, 1), "volume takes 1 arguments, and 2 are given"),
        ((1,), "Argument 0 of volume has 8 bytes, and 4 are given"),
        ((y[::2],), "not contiguous"),
        (("y",), "cannot be a str"),
    ):
        with pytest.raises(UserError, match=said):
            run_original(FEATURES, [Launch("volume", (1, 1, 1), (3, 2, 2), args)])
    for grid, block, shared in (((1, 1, 1), (1025, 1, 1), 0), ((0, 1, 1), (1, 1, 1), 0)):
        with pytest.raises(UserError, match="cannot be launched"):
            run_original(FEATURES, [Launch("volume", grid, block, (y,), shared)])


def test_a_file_that_the_compiler_refuses_says_its_line() -> None:
    source = "__global__ void odd(float* x) {\n  x[0] = nothing_like_this(1);\n}"
    with pytest.raises(NotBuilt, match="line 2: .*nothing_like_this") as refused:
        run_original(source, [Launch("odd", (1, 1, 1), (1, 1, 1), (None,))])
    assert refused.value.line == 2


def test_inline_ptx_is_named_with_its_line() -> None:
    source = (
        "__global__ void ptx(int* x) {\n  int lane;\n"
        '  asm("mov.u32 %0, 3;" : "=r"(lane));\n  *x = lane;\n}'
    )
    with pytest.raises(NotBuilt, match="line 3: inline PTX") as refused:
        run_original(source, [Launch("ptx", (1, 1, 1), (1, 1, 1), (None,))])
    assert refused.value.line == 3


def test_files_beside_it_are_included(tmp_path: Path) -> None:
    (tmp_path / "scale.cuh").write_text(
        "#pragma once\n__device__ float scale() { return SCALE; }\n"
    )
    source = '#include "scale.cuh"\n__global__ void set(float* x) { *x = scale(); }\n'
    path = tmp_path / "set.cu"
    path.write_text(source)
    x = np.zeros(1, np.float32)
    call = Launch("set", (1, 1, 1), (1, 1, 1), (x,))
    assert run(call, source=source, path=path, define={"SCALE": "7.5f"}).outputs[0] == 7.5


def test_no_compiler_is_one_clear_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    compiler.cache_clear()
    try:
        with pytest.raises(UserError, match="needs Linux and a C\\+\\+ compiler"):
            run_original(FEATURES, [Launch("volume", (1, 1, 1), (1, 1, 1), (None,))])
    finally:
        compiler.cache_clear()


@pytest.mark.parametrize(
    "head",
    [
        "extern __shared__ __align__(sizeof(T)) unsigned char raw[]",
        "extern __align__(16) __shared__ unsigned char raw[]",
        "alignas(16) extern __shared__ unsigned char raw[]",
    ],
)
def test_dynamic_shared_memory_is_found_however_it_is_aligned(head: str) -> None:
    source = (
        "template <typename T> __global__ void turn(const T* x, T* y) {\n"
        f"  {head};\n"
        "  T* s = reinterpret_cast<T*>(raw);\n"
        "  s[threadIdx.x] = x[threadIdx.x];\n"
        "  __syncthreads();\n"
        "  y[threadIdx.x] = s[31 - threadIdx.x];\n}\n"
    )
    x, y = np.arange(32, dtype=np.float64), np.zeros(32)
    call = Launch("turn<double>", (1, 1, 1), (32, 1, 1), (x, y), 32 * 8)
    assert (run(call, source=source, unfilled=[y]).outputs[1] == x[::-1]).all()


def test_only_what_is_included_is_read(tmp_path: Path) -> None:
    """What else lies beside a file may come and go, or be no text."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "one.h").write_text('#include "two.cuh"\n')
    (tmp_path / "more" / "two.cuh").write_text("#define FACTOR 3\n")
    (tmp_path / "gone.h").symlink_to(tmp_path / "nowhere.h")
    path = tmp_path / "k.cu"
    path.write_text("")
    source = '#include "more/one.h"\n__global__ void k(float* x) { *x = FACTOR; }'
    x = np.zeros(1, np.float32)
    for factor in (3, 4):
        (tmp_path / "more" / "two.cuh").write_text(f"#define FACTOR {factor}\n")
        done = run_original(source, [Launch("k", (1, 1, 1), (1, 1, 1), (x,))], path=path)
        assert done.outputs[0][0] == factor
