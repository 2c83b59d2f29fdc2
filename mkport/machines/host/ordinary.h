// For the host build of an ordinary CUDA kernel: the names that CUDA gives it. Its blocks run one
// after another, so that its dynamic shared memory, `shared`, is one array.
#pragma once
#include "device.h"

#include "names.h"

#define threadIdx (uint3{unsigned(mk_thread()), 0, 0})
#define blockIdx (uint3{unsigned(mk_worker()), 0, 0})
#define blockDim (uint3{unsigned(mk_host::world->threads), 1, 1})
#define gridDim (uint3{unsigned(mk_host::world->blocks), 1, 1})
#define __shared__
alignas(1024) inline char shared[232448];

inline void __syncthreads() { mk_sync_block(); }
inline bool __syncthreads_or(bool p) { return mk_barrier_any(0, mk_host::world->threads, p); }
