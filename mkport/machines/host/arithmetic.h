// CUDA's arithmetic, for an ordinary C++ compiler. An approximation of the GPU's is the C library's
// function here. Stands in names.h.
#pragma once

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
// An address in shared memory has 32 bits: the low ones of the pointer.
inline size_t __cvta_generic_to_shared(const void* p) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p));
}
inline size_t __cvta_generic_to_global(const void* p) { return reinterpret_cast<size_t>(p); }
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
inline double sinpi(double x) { return sin(x * 3.14159265358979323846); }
inline double cospi(double x) { return cos(x * 3.14159265358979323846); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline void sincospi(double x, double* s, double* c) { *s = sinpi(x), *c = cospi(x); }
inline float norm3df(float x, float y, float z) { return sqrtf(x * x + y * y + z * z); }
inline float norm4df(float x, float y, float z, float w) {
  return sqrtf(x * x + y * y + z * z + w * w);
}
inline float rnorm3df(float x, float y, float z) { return 1.0f / norm3df(x, y, z); }
inline float rnorm4df(float x, float y, float z, float w) { return 1.0f / norm4df(x, y, z, w); }
inline float rhypotf(float x, float y) { return 1.0f / hypotf(x, y); }
inline double rhypot(double x, double y) { return 1.0 / hypot(x, y); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752440f); }
inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
#include "conversions.h"

#define MK_MIN_MAX(type)                                           \
  inline type min(type x, type y) { return y < x ? y : x; }        \
  inline type max(type x, type y) { return x < y ? y : x; }
MK_MIN_MAX(int)
MK_MIN_MAX(unsigned)
MK_MIN_MAX(long)
MK_MIN_MAX(unsigned long)
MK_MIN_MAX(long long)
MK_MIN_MAX(unsigned long long)
inline unsigned umin(unsigned x, unsigned y) { return min(x, y); }
inline unsigned umax(unsigned x, unsigned y) { return max(x, y); }
inline long long llmin(long long x, long long y) { return min(x, y); }
inline long long llmax(long long x, long long y) { return max(x, y); }
inline unsigned long long ullmin(unsigned long long x, unsigned long long y) { return min(x, y); }
inline unsigned long long ullmax(unsigned long long x, unsigned long long y) { return max(x, y); }
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
#include "integers.h"
