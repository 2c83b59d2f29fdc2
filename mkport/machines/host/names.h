// The names that CUDA gives a kernel, for an ordinary C++ compiler: vector types, arithmetic,
// collectives of a warp, atomics. It is written in what device.h and original.h both have: mk_lane,
// mk_meet, mk_may_leave, mk_present, mk_junk, mk_atomic and some more. What a kernel finds out
// about its indices, its barriers and its shared memory are not here.
#pragma once
#include <assert.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#define __host__
#define __constant__
#define __managed__
#define __noinline__  // the C++ library uses the word itself
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __grid_constant__
#define __cluster_dims__(...)
#define __builtin_assume(condition) ((void)0)
#define __CUDA_ARCH__ 900

#include "vectors.h"
#include "arithmetic.h"

// Loads and stores with a hint.

#define MK_LOAD(name)            \
  template <class T>             \
  inline T name(const T* p) {    \
    return *p;                   \
  }
MK_LOAD(__ldg)
MK_LOAD(__ldca)
MK_LOAD(__ldcg)
MK_LOAD(__ldcs)
MK_LOAD(__ldlu)
MK_LOAD(__ldcv)
#undef MK_LOAD
#define MK_STORE(name)                  \
  template <class T>                    \
  inline void name(T* p, T x) {         \
    *p = x;                             \
  }
MK_STORE(__stwb)
MK_STORE(__stcg)
MK_STORE(__stcs)
MK_STORE(__stwt)
#undef MK_STORE
inline void __prefetch_global_l1(const void*) {}
inline void __prefetch_global_l2(const void*) {}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { mk_may_leave(); }
inline long long clock64() { return mk_ticks(); }
inline long long clock() { return mk_ticks(); }
inline void __trap() { mk_fault("the kernel called __trap()"); }
inline void __brkpt() {}

#include "warp.h"

// Atomics: another thread may come between any two, none within one.

#ifndef MK_PLAIN
#define MK_PLAIN
#endif
template <class T>
MK_PLAIN inline T mk_exchange_by(T* p, T x, T (*change)(T, T), bool order_matters, int line) {
  mk_may_leave();
  mk_atomic(p, sizeof(T), order_matters, line);
  const T old = *p;
  *p = change(old, x);
  return old;
}
#define MK_ATOMIC(name, expression, ordered)                                             \
  template <class T>                                                                     \
  inline T name(T* p, std::common_type_t<T> x, MK_LINE) {                                \
    return mk_exchange_by<T>(                                                            \
        p, x, [](T a, T b) -> T { return expression; }, ordered, line);                  \
  }                                                                                      \
  template <class T>                                                                     \
  inline T name##_block(T* p, std::common_type_t<T> x, MK_LINE) {                        \
    return name(p, x, line);                                                             \
  }                                                                                      \
  template <class T>                                                                     \
  inline T name##_system(T* p, std::common_type_t<T> x, MK_LINE) {                       \
    return name(p, x, line);                                                             \
  }
MK_ATOMIC(atomicAdd, T(a + b), !std::is_integral<T>::value)
MK_ATOMIC(atomicSub, T(a - b), !std::is_integral<T>::value)
MK_ATOMIC(atomicExch, (void(a), b), false)
MK_ATOMIC(atomicMin, b < a ? b : a, false)
MK_ATOMIC(atomicMax, a < b ? b : a, false)
MK_ATOMIC(atomicAnd, T(a & b), false)
MK_ATOMIC(atomicOr, T(a | b), false)
MK_ATOMIC(atomicXor, T(a ^ b), false)
MK_ATOMIC(atomicInc, a >= b ? T(0) : T(a + 1), false)
MK_ATOMIC(atomicDec, a == 0 || a > b ? b : T(a - 1), false)
#undef MK_ATOMIC
template <class T>
MK_PLAIN inline T atomicCAS(T* p, std::common_type_t<T> expected, std::common_type_t<T> x,
                            MK_LINE) {
  mk_may_leave();
  mk_atomic(p, sizeof(T), false, line);
  const T old = *p;
  if (memcmp(&old, &expected, sizeof old) == 0) *p = x;
  return old;
}

// What a kernel wraps in inline PTX, under the names that the kernels of mkport give it.

inline void copy16(void* to, const void* from) { mk_copy_later(to, from, 16, 16); }
inline void end_copies() { mk_end_copies(); }
template <int groups>
void wait_copies() {
  mk_wait_copies(groups);
}
inline float exp2_fast(float x) {
  const float y = exp2f(x);
  return y < 1.17549435e-38f ? 0.0f : y;
}
inline unsigned short mk_narrowed(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline unsigned narrow2(float low, float high) {
  return mk_narrowed(low) | unsigned(mk_narrowed(high)) << 16;
}
inline unsigned transpose8(unsigned pair) { return mk_turned8(pair); }
inline void load_turned4(unsigned (&m)[4], const void* row) {
  mk_matrix4(m, row);
  for (unsigned& pair : m) pair = mk_turned8(pair);
}
inline void load_matrix4(unsigned (&m)[4], const void* row) { mk_matrix4(m, row); }
inline void multiply16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  mk_product16(d, a, b0, b1);
}
