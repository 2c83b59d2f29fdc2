// For a CUDA file that knows nothing of mkport, compiled for a CPU: the names that CUDA gives it.
// Every load and store goes through the hooks of original_hooks.h, which is compiled apart, since
// the hooks must not watch themselves.
#pragma once
#include <tuple>
#include <utility>

#include "original_types.h"

// Calls are inlined first: a struct that a function returns into memory has no hook of its own.
#define __global__ __attribute__((flatten))
#define __device__
#define __forceinline__ __attribute__((unused))
#define __launch_bounds__(...)
// One thread of the system runs all blocks, one after another. "Used": that nothing writes an array
// is for the checker to say, and no reason to leave its reads out.
#define __shared__ __attribute__((used)) thread_local
#define MK_PLAIN __attribute__((no_sanitize("thread")))

typedef void (*MkAct)(void** given, uint32_t lanes);
extern "C" {
int mko_lane() __attribute__((const));
void mko_meet(unsigned mask, const char* what, int line, void* given, MkAct act);
void mko_may_leave();
unsigned mko_present();
void mko_junk(void* to, size_t bytes);
void mko_atomic(void* p, size_t bytes, bool order_matters, int line);
long long mko_ticks();
[[noreturn]] void mko_fault(const char* what);
MkSync mko_sync(int p, int line);
MkIndex3 mko_index(int which) __attribute__((const));  // thread, block, block's size, grid's
void mko_product16(float* d, const unsigned* a, unsigned b0, unsigned b1);
void mko_matrix4(unsigned* m, const void* row);
unsigned mko_turned8(unsigned pair);
void mko_copy_later(void* to, const void* from, int bytes, int there);
void mko_end_copies();
void mko_wait_copies(int groups);
}
#define mk_lane mko_lane
#define mk_meet mko_meet
#define mk_may_leave mko_may_leave
#define mk_present mko_present
#define mk_junk mko_junk
#define mk_atomic mko_atomic
#define mk_ticks mko_ticks
#define mk_fault mko_fault
#define mk_product16 mko_product16
#define mk_matrix4 mko_matrix4
#define mk_turned8 mko_turned8
#define mk_copy_later mko_copy_later
#define mk_end_copies mko_end_copies
#define mk_wait_copies mko_wait_copies

#include "names.h"

inline char* mk_shared() {  // somewhere in it: all of it is one thread's
  static thread_local char here;
  return &here;
}

inline uint3 mk_index3(int which) {
  const MkIndex3 i = mko_index(which);
  return {i.x, i.y, i.z};
}
#define threadIdx (mk_index3(0))
#define blockIdx (mk_index3(1))
#define blockDim (dim3(mk_index3(2)))
#define gridDim (dim3(mk_index3(3)))

inline void __syncthreads(MK_LINE) { mko_sync(0, line); }
inline int __syncthreads_or(int p, MK_LINE) { return mko_sync(p, line).any; }
inline int __syncthreads_and(int p, MK_LINE) { return mko_sync(p, line).all; }
inline int __syncthreads_count(int p, MK_LINE) { return mko_sync(p, line).count; }

// The way in: a kernel by its place, called with pointers to its arguments.
template <class... A>
struct MkCaller {
  template <void (*kernel)(A...), size_t... I>
  static void run(void** args, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A>*>(args[I])...);
  }
};
template <class K, K kernel>
struct MkEntry;
template <class... A, void (*kernel)(A...)>
struct MkEntry<void (*)(A...), kernel> {
  static void call(void** args) {
    MkCaller<A...>::template run<kernel>(args, std::index_sequence_for<A...>());
  }
  static constexpr int sizes[sizeof...(A) + 1] = {int(sizeof(A))..., 0};
  static MkKernel entry() { return {call, sizes, int(sizeof...(A))}; }
};
#define MK_ENTRY(...) MkEntry<decltype(&__VA_ARGS__), &__VA_ARGS__>::entry()
