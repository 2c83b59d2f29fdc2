// For the host build of an ordinary CUDA kernel: the names that CUDA gives it. Its blocks run one
// after another, so that its dynamic shared memory, `shared`, is one array.
#pragma once
#include "device.h"

struct MkIndex {
  unsigned x, y, z;
};
#define threadIdx (MkIndex{unsigned(mk_thread()), 0, 0})
#define blockIdx (MkIndex{unsigned(mk_worker()), 0, 0})
#define blockDim (MkIndex{unsigned(mk_host::world->threads), 1, 1})
#define gridDim (MkIndex{unsigned(mk_host::world->blocks), 1, 1})
#define __shared__
#define __align__(bytes)
#define __restrict__ __restrict
alignas(1024) inline char shared[232448];

inline void __syncthreads() { mk_sync_block(); }
inline void __syncwarp() { mk_sync_warp(); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __shfl_xor_sync(unsigned, float x, int mask) { return mk_shuffle_xor(x, mask); }
inline int __shfl_xor_sync(unsigned, int x, int mask) { return mk_shuffle_xor(x, mask); }
inline float __shfl_sync(unsigned, float x, int lane) { return mk_shuffle(x, lane); }
inline bool __syncthreads_or(bool p) { return mk_barrier_any(0, mk_host::world->threads, p); }
inline float __uint_as_float(unsigned bits) { return mk_float(int(bits)); }
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}

// What a kernel wraps in inline PTX, under the names that the kernels of this library give it.
// Copies in the background end when they are waited for, and are NaN before.
struct MkPendingCopy {
  char* to;
  const char* from;
  int group;
};
inline std::vector<MkPendingCopy> mk_pending[1024];  // of each thread of the running block
inline int mk_group[1024];

inline void copy16(void* to, const void* from) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16)
    mk_host::fault("copy16 needs addresses that are multiples of 16");
  memset(to, 0xff, 16);
  mk_pending[mk_thread()].push_back(
      {static_cast<char*>(to), static_cast<const char*>(from), mk_group[mk_thread()]});
}
inline void end_copies() { mk_group[mk_thread()]++; }
template <int groups>
void wait_copies() {
  std::vector<MkPendingCopy>& pending = mk_pending[mk_thread()];
  while (!pending.empty() && pending.front().group < mk_group[mk_thread()] - groups) {
    memcpy(pending.front().to, pending.front().from, 16);
    pending.erase(pending.begin());
  }
}
inline float exp2_fast(float x) { return mk_exp2(x); }
inline unsigned narrow2(float low, float high) { return mk_narrow2(low, high); }
inline unsigned transpose8(unsigned pair) { return mk_transpose(pair); }
inline void load_matrix4(unsigned (&m)[4], const void* row) { mk_load_matrix4(m, row); }
inline void multiply16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  mk_mma(d, a, b0, b1);
}
