// Half precision, as cuda_fp16.h has it, for an ordinary C++ compiler: each operation is done in
// float32 and rounded to nearest even.
#pragma once

struct __half;
inline float __half2float(__half x);
inline __half __float2half(float x);

struct __half {
  unsigned short bits;
  __half() = default;
  __half(float x) { *this = __float2half(x); }
  __half(double x) { *this = __float2half(float(x)); }
  __half(int x) { *this = __float2half(float(x)); }
  __half(unsigned x) { *this = __float2half(float(x)); }
  __half(long long x) { *this = __float2half(float(x)); }
  operator float() const { return __half2float(*this); }
  __half& operator+=(__half y);
  __half& operator-=(__half y);
  __half& operator*=(__half y);
  __half& operator/=(__half y);
};
typedef __half half;
struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  __half2(const __half& x, const __half& y) : x(x), y(y) {}
};
typedef __half2 half2;

inline float __half2float(__half h) {
  const unsigned sign = unsigned(h.bits & 0x8000) << 16;
  unsigned exponent = h.bits >> 10 & 31, fraction = h.bits & 0x3ff, bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000 | fraction << 13;
  } else if (exponent || !fraction) {
    bits = exponent ? sign | (exponent + 112) << 23 | fraction << 13 : sign;
  } else {  // subnormal: its value is fraction * 2**-24
    const float x = float(fraction) * 5.9604644775390625e-8f;
    memcpy(&bits, &x, 4);
    bits |= sign;
  }
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline __half __float2half(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  const unsigned sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  __half h;
  if (size > 0x7f800000) {
    h.bits = 0x7fff;
  } else if (size >= 0x477ff000) {  // rounds to more than 65504
    h.bits = static_cast<unsigned short>(sign | 0x7c00);
  } else if (size >= 0x38800000) {
    const unsigned even = size + 0xfff + (size >> 13 & 1);
    h.bits = static_cast<unsigned short>(sign | ((even - 0x38000000) >> 13));
  } else {  // subnormal: counted in 2**-24, which rintf rounds to even
    float magnitude;
    memcpy(&magnitude, &size, 4);
    h.bits = static_cast<unsigned short>(sign | unsigned(rintf(magnitude * 16777216.0f)));
  }
  return h;
}
inline __half __float2half_rn(float x) { return __float2half(x); }
inline __half __double2half(double x) { return __float2half(mk_odd(x)); }
inline __half2 __float2half2_rn(float x) { return {__float2half(x), __float2half(x)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half(x), __float2half(y)}; }
inline __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }
inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline float __low2float(__half2 v) { return __half2float(v.x); }
inline float __high2float(__half2 v) { return __half2float(v.y); }
inline __half2 __low2half2(__half2 v) { return {v.x, v.x}; }
inline __half2 __high2half2(__half2 v) { return {v.y, v.y}; }
inline __half2 __lows2half2(__half2 v, __half2 w) { return {v.x, w.x}; }
inline __half2 __highs2half2(__half2 v, __half2 w) { return {v.y, w.y}; }
inline __half __short_as_half(short x) { return mk_bits<__half>(x); }
inline short __half_as_short(__half x) { return static_cast<short>(x.bits); }
inline __half __ushort_as_half(unsigned short x) { return mk_bits<__half>(x); }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half operator+(__half x, __half y) {
  return __float2half(__half2float(x) + __half2float(y));
}
inline __half& __half::operator+=(__half y) { return *this = *this + y; }
inline __half operator-(__half x, __half y) {
  return __float2half(__half2float(x) - __half2float(y));
}
inline __half& __half::operator-=(__half y) { return *this = *this - y; }
inline __half operator*(__half x, __half y) {
  return __float2half(__half2float(x) * __half2float(y));
}
inline __half& __half::operator*=(__half y) { return *this = *this * y; }
inline __half operator/(__half x, __half y) {
  return __float2half(__half2float(x) / __half2float(y));
}
inline __half& __half::operator/=(__half y) { return *this = *this / y; }
inline __half operator-(__half x) {
  x.bits ^= 0x8000;
  return x;
}
inline bool operator==(__half x, __half y) { return __half2float(x) == __half2float(y); }
inline bool operator!=(__half x, __half y) { return __half2float(x) != __half2float(y); }
inline bool operator<(__half x, __half y) { return __half2float(x) < __half2float(y); }
inline bool operator<=(__half x, __half y) { return __half2float(x) <= __half2float(y); }
inline bool operator>(__half x, __half y) { return __half2float(x) > __half2float(y); }
inline bool operator>=(__half x, __half y) { return __half2float(x) >= __half2float(y); }
inline __half __hadd(__half x, __half y) { return x + y; }
inline __half2 __hadd2(__half2 x, __half2 y) { return {x.x + y.x, x.y + y.y}; }
inline __half2 operator+(__half2 x, __half2 y) { return {x.x + y.x, x.y + y.y}; }
inline __half __hsub(__half x, __half y) { return x - y; }
inline __half2 __hsub2(__half2 x, __half2 y) { return {x.x - y.x, x.y - y.y}; }
inline __half2 operator-(__half2 x, __half2 y) { return {x.x - y.x, x.y - y.y}; }
inline __half __hmul(__half x, __half y) { return x * y; }
inline __half2 __hmul2(__half2 x, __half2 y) { return {x.x * y.x, x.y * y.y}; }
inline __half2 operator*(__half2 x, __half2 y) { return {x.x * y.x, x.y * y.y}; }
inline __half __hdiv(__half x, __half y) { return x / y; }
inline __half2 __h2div(__half2 x, __half2 y) { return {x.x / y.x, x.y / y.y}; }
inline __half2 operator/(__half2 x, __half2 y) { return {x.x / y.x, x.y / y.y}; }
inline __half __hneg(__half x) { return -x; }
inline __half __habs(__half x) {
  x.bits &= 0x7fff;
  return x;
}
// The product of two half numbers is exact in float64, and the sum nearly so.
inline __half __hfma(__half x, __half y, __half z) {
  return __float2half(float(double(__half2float(x)) * __half2float(y) + __half2float(z)));
}
inline __half2 __hfma2(__half2 x, __half2 y, __half2 z) {
  return {__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y)};
}
inline __half __hmax(__half x, __half y) {  // of a number and NaN, the number
  if (x != x && y == y) return y;
  return y != y && x == x ? x : __float2half(fmaxf(__half2float(x), __half2float(y)));
}
inline __half2 __hmax2(__half2 x, __half2 y) { return {__hmax(x.x, y.x), __hmax(x.y, y.y)}; }
inline __half __hmin(__half x, __half y) {  // of a number and NaN, the number
  if (x != x && y == y) return y;
  return y != y && x == x ? x : __float2half(fminf(__half2float(x), __half2float(y)));
}
inline __half2 __hmin2(__half2 x, __half2 y) { return {__hmin(x.x, y.x), __hmin(x.y, y.y)}; }
inline bool __heq(__half x, __half y) { return x == y; }
inline bool __hne(__half x, __half y) { return x != y; }
inline bool __hlt(__half x, __half y) { return x < y; }
inline bool __hle(__half x, __half y) { return x <= y; }
inline bool __hgt(__half x, __half y) { return x > y; }
inline bool __hge(__half x, __half y) { return x >= y; }
inline bool __hisnan(__half x) { return __half2float(x) != __half2float(x); }
inline __half hexp(__half x) { return __float2half(expf(__half2float(x))); }
inline __half hexp2(__half x) { return __float2half(exp2f(__half2float(x))); }
inline __half hlog(__half x) { return __float2half(logf(__half2float(x))); }
inline __half hlog2(__half x) { return __float2half(log2f(__half2float(x))); }
inline __half hsqrt(__half x) { return __float2half(sqrtf(__half2float(x))); }
inline __half hrsqrt(__half x) { return __float2half(rsqrtf(__half2float(x))); }
inline __half hsin(__half x) { return __float2half(sinf(__half2float(x))); }
inline __half hcos(__half x) { return __float2half(cosf(__half2float(x))); }
inline __half hfloor(__half x) { return __float2half(floorf(__half2float(x))); }
inline __half hceil(__half x) { return __float2half(ceilf(__half2float(x))); }
inline __half hrint(__half x) { return __float2half(rintf(__half2float(x))); }
inline __half hrcp(__half x) { return __float2half(1.0f / __half2float(x)); }
#define MK_H __half
#define MK_H2 __half2
#define MK_NARROW __float2half
#define MK_WIDE __half2float
#define MK_TO_WHOLE(name, how) __half2##name##how
#define MK_FROM_WHOLE(name) __##name##2half_rn
#include "half_more.h"
#undef MK_H
#undef MK_H2
#undef MK_NARROW
#undef MK_WIDE
#undef MK_TO_WHOLE
#undef MK_FROM_WHOLE
