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

#include <type_traits>

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

// Vector types.

#define MK_VECTORS(type, name, align2, align4)                            \
  struct name##1 {                                                        \
    type x;                                                               \
  };                                                                      \
  struct alignas(align2) name##2 {                                        \
    type x, y;                                                            \
  };                                                                      \
  struct name##3 {                                                        \
    type x, y, z;                                                         \
  };                                                                      \
  struct alignas(align4) name##4 {                                        \
    type x, y, z, w;                                                      \
  };                                                                      \
  inline name##1 make_##name##1(type x) { return {x}; }                   \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }        \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
typedef unsigned char mk_uchar;
typedef unsigned short mk_ushort;
typedef long long mk_longlong;
typedef unsigned long long mk_ulonglong;
MK_VECTORS(signed char, char, 2, 4)
MK_VECTORS(mk_uchar, uchar, 2, 4)
MK_VECTORS(short, short, 4, 8)
MK_VECTORS(mk_ushort, ushort, 4, 8)
MK_VECTORS(int, int, 8, 16)
MK_VECTORS(unsigned, uint, 8, 16)
MK_VECTORS(long, long, 16, 16)
MK_VECTORS(unsigned long, ulong, 16, 16)
MK_VECTORS(mk_longlong, longlong, 16, 16)
MK_VECTORS(mk_ulonglong, ulonglong, 16, 16)
MK_VECTORS(float, float, 8, 16)
MK_VECTORS(double, double, 16, 16)
#undef MK_VECTORS
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};
typedef void* cudaStream_t;
constexpr int warpSize = 32;

// Arithmetic. An approximation of the GPU's is the C library's function here.

template <class To, class From>
inline To mk_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits are reread as a type of the same size");
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
inline float __int_as_float(int x) { return mk_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return mk_bits<float>(x); }
inline int __float_as_int(float x) { return mk_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return mk_bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return mk_bits<double>(x); }
inline long long __double_as_longlong(double x) { return mk_bits<long long>(x); }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float fdividef(float x, float y) { return x / y; }
inline float sinpif(float x) { return sinf(x * 3.14159265358979323846f); }
inline float cospif(float x) { return cosf(x * 3.14159265358979323846f); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752440f); }
inline int __float2int_rn(float x) { return int(rintf(x)); }
inline int __float2int_rz(float x) { return int(x); }
inline int __float2int_rd(float x) { return int(floorf(x)); }
inline int __float2int_ru(float x) { return int(ceilf(x)); }
inline unsigned __float2uint_rn(float x) { return unsigned(rintf(x)); }
inline unsigned __float2uint_rz(float x) { return unsigned(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __double2float_rn(double x) { return float(x); }

#define MK_MIN_MAX(type)                                           \
  inline type min(type x, type y) { return y < x ? y : x; }        \
  inline type max(type x, type y) { return x < y ? y : x; }
MK_MIN_MAX(int)
MK_MIN_MAX(unsigned)
MK_MIN_MAX(long)
MK_MIN_MAX(unsigned long)
MK_MIN_MAX(long long)
MK_MIN_MAX(unsigned long long)
#undef MK_MIN_MAX
inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }
inline double min(double x, double y) { return fmin(x, y); }
inline double max(double x, double y) { return fmax(x, y); }
// Two arithmetic types: both as what C++ converts them to.
template <class A, class B, class C = std::common_type_t<A, B>,
          class = std::enable_if_t<!std::is_same<A, B>::value && std::is_arithmetic<A>::value &&
                                   std::is_arithmetic<B>::value>>
inline C min(A x, B y) {
  return min(C(x), C(y));
}
template <class A, class B, class C = std::common_type_t<A, B>,
          class = std::enable_if_t<!std::is_same<A, B>::value && std::is_arithmetic<A>::value &&
                                   std::is_arithmetic<B>::value>>
inline C max(A x, B y) {
  return max(C(x), C(y));
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
  return y;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = uint64_t(y) << 32 | x;
  unsigned z = 0;
  for (int i = 0; i < 4; i++) {
    unsigned byte = both >> (selector >> 4 * i & 7) * 8 & 0xff;
    if (selector >> 4 * i & 8) byte = byte & 0x80 ? 0xff : 0;
    z |= byte << 8 * i;
  }
  return z;
}
inline int __dp4a(int x, int y, int sum) {
  for (int i = 0; i < 4; i++) sum += int(int8_t(x >> 8 * i)) * int(int8_t(y >> 8 * i));
  return sum;
}
inline unsigned __dp4a(unsigned x, unsigned y, unsigned sum) {
  for (int i = 0; i < 4; i++) sum += (x >> 8 * i & 0xff) * (y >> 8 * i & 0xff);
  return sum;
}
inline int __mul24(int x, int y) { return (x << 8 >> 8) * (y << 8 >> 8); }
inline int __mulhi(int x, int y) { return int(int64_t(x) * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned(uint64_t(x) * y >> 32); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return unsigned((uint64_t(high) << 32 | low) << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned((uint64_t(high) << 32 | low) >> (by & 31));
}

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

// Within a warp. A lane that is not there gives junk.

#define MK_LINE int line = __builtin_LINE()
template <class T>
struct MkGiven {
  T x, got;
  int from;
};
template <class T>
inline T mk_shuffle_from(const char* what, unsigned mask, T x, int from, int line) {
  MkGiven<T> given{x, x, from};
  mk_meet(mask, what, line, &given, [](void** all, uint32_t lanes) {
    for (int i = 0; i < 32; i++) {
      if (!(lanes >> i & 1)) continue;
      MkGiven<T>& g = *static_cast<MkGiven<T>*>(all[i]);
      if (lanes >> g.from & 1)
        g.got = static_cast<MkGiven<T>*>(all[g.from])->x;
      else
        mk_junk(&g.got, sizeof g.got);
    }
  });
  return given.got;
}
template <class T>
inline T __shfl_sync(unsigned mask, T x, int from, int width = 32, MK_LINE) {
  const int first = mk_lane() & ~(width - 1);
  return mk_shuffle_from("__shfl_sync", mask, x, first + (from & (width - 1)), line);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32, MK_LINE) {
  const int first = mk_lane() & ~(width - 1), from = mk_lane() - int(by);
  return mk_shuffle_from("__shfl_up_sync", mask, x, from < first ? mk_lane() : from, line);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32, MK_LINE) {
  const int last = mk_lane() | (width - 1), from = mk_lane() + int(by);
  return mk_shuffle_from("__shfl_down_sync", mask, x, from > last ? mk_lane() : from, line);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T x, int with, int width = 32, MK_LINE) {
  const int last = mk_lane() | (width - 1), from = mk_lane() ^ with;
  return mk_shuffle_from("__shfl_xor_sync", mask, x, from > last ? mk_lane() : from, line);
}
inline void __syncwarp(unsigned mask = ~0u, MK_LINE) {
  mk_meet(mask, "__syncwarp", line, nullptr, [](void**, uint32_t) {});
}
struct MkVote {
  bool p;
  unsigned set, there;
};
inline MkVote mk_vote(const char* what, unsigned mask, bool p, int line) {
  MkVote given{p, 0, 0};
  mk_meet(mask, what, line, &given, [](void** all, uint32_t lanes) {
    unsigned set = 0;
    for (int i = 0; i < 32; i++)
      if (lanes >> i & 1 && static_cast<MkVote*>(all[i])->p) set |= 1u << i;
    for (int i = 0; i < 32; i++)
      if (lanes >> i & 1) {
        static_cast<MkVote*>(all[i])->set = set;
        static_cast<MkVote*>(all[i])->there = lanes;
      }
  });
  return given;
}
inline unsigned __ballot_sync(unsigned mask, int p, MK_LINE) {
  return mk_vote("__ballot_sync", mask, p != 0, line).set;
}
inline int __any_sync(unsigned mask, int p, MK_LINE) {
  return mk_vote("__any_sync", mask, p != 0, line).set != 0;
}
inline int __all_sync(unsigned mask, int p, MK_LINE) {
  const MkVote vote = mk_vote("__all_sync", mask, p != 0, line);
  return vote.set == vote.there;
}
inline unsigned __activemask() { return mk_present(); }
template <class T>
struct MkMatch {
  T x;
  unsigned same, there;
};
template <class T>
inline MkMatch<T> mk_match(const char* what, unsigned mask, T x, int line) {
  MkMatch<T> given{x, 0, 0};
  mk_meet(mask, what, line, &given, [](void** all, uint32_t lanes) {
    for (int i = 0; i < 32; i++) {
      if (!(lanes >> i & 1)) continue;
      MkMatch<T>& g = *static_cast<MkMatch<T>*>(all[i]);
      g.there = lanes;
      for (int j = 0; j < 32; j++)
        if (lanes >> j & 1 && memcmp(&static_cast<MkMatch<T>*>(all[j])->x, &g.x, sizeof(T)) == 0)
          g.same |= 1u << j;
    }
  });
  return given;
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T x, MK_LINE) {
  return mk_match("__match_any_sync", mask, x, line).same;
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T x, int* p, MK_LINE) {
  const MkMatch<T> found = mk_match("__match_all_sync", mask, x, line);
  *p = found.same == found.there;
  return *p ? found.there : 0;
}
#define MK_REDUCE(name, type, expression)                                            \
  inline type name(unsigned mask, type x, MK_LINE) {                                 \
    MkGiven<type> given{x, x, 0};                                                    \
    mk_meet(mask, #name, line, &given, [](void** all, uint32_t lanes) {              \
      bool first = true;                                                             \
      type a = 0;                                                                    \
      for (int i = 0; i < 32; i++) {                                                 \
        if (!(lanes >> i & 1)) continue;                                             \
        const type b = static_cast<MkGiven<type>*>(all[i])->x;                       \
        a = first ? b : (expression);                                                \
        first = false;                                                               \
      }                                                                              \
      for (int i = 0; i < 32; i++)                                                   \
        if (lanes >> i & 1) static_cast<MkGiven<type>*>(all[i])->got = a;            \
    });                                                                              \
    return given.got;                                                                \
  }
MK_REDUCE(__reduce_add_sync, unsigned, a + b)
MK_REDUCE(__reduce_add_sync, int, int(unsigned(a) + unsigned(b)))
MK_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
MK_REDUCE(__reduce_min_sync, int, a < b ? a : b)
MK_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
MK_REDUCE(__reduce_max_sync, int, a > b ? a : b)
MK_REDUCE(__reduce_and_sync, unsigned, a & b)
MK_REDUCE(__reduce_or_sync, unsigned, a | b)
MK_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef MK_REDUCE

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

inline void copy16(void* to, const void* from) { mk_copy16(to, from); }
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
inline void load_matrix4(unsigned (&m)[4], const void* row) { mk_matrix4(m, row); }
inline void multiply16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  mk_product16(d, a, b0, b1);
}
