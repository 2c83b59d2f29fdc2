// Bfloat16, as cuda_bf16.h has it, for an ordinary C++ compiler: each operation is done in float32
// and rounded to nearest even.
#pragma once

struct __nv_bfloat16;
inline float __bfloat162float(__nv_bfloat16 x);
inline __nv_bfloat16 __float2bfloat16(float x);

struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) { *this = __float2bfloat16(x); }
  __nv_bfloat16(double x) { *this = __float2bfloat16(float(x)); }
  __nv_bfloat16(int x) { *this = __float2bfloat16(float(x)); }
  __nv_bfloat16(unsigned x) { *this = __float2bfloat16(float(x)); }
  __nv_bfloat16(long long x) { *this = __float2bfloat16(float(x)); }
  operator float() const { return __bfloat162float(*this); }
  __nv_bfloat16& operator+=(__nv_bfloat16 y);
  __nv_bfloat16& operator-=(__nv_bfloat16 y);
  __nv_bfloat16& operator*=(__nv_bfloat16 y);
  __nv_bfloat16& operator/=(__nv_bfloat16 y);
};
typedef __nv_bfloat16 nv_bfloat16;
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  __nv_bfloat162(const __nv_bfloat16& x, const __nv_bfloat16& y) : x(x), y(y) {}
};
typedef __nv_bfloat162 nv_bfloat162;

inline float __bfloat162float(__nv_bfloat16 h) {
  const unsigned bits = unsigned(h.bits) << 16;
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline __nv_bfloat16 __float2bfloat16(float x) {
  __nv_bfloat16 h;
  h.bits = mk_narrowed(x);
  return h;
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __float2bfloat16(x); }
inline __nv_bfloat16 __double2bfloat16(double x) { return __float2bfloat16(mk_odd(x)); }
inline __nv_bfloat162 __float2bfloat162_rn(float x) {
  return {__float2bfloat16(x), __float2bfloat16(x)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16(x), __float2bfloat16(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
inline float2 __bfloat1622float2(__nv_bfloat162 v) {
  return {__bfloat162float(v.x), __bfloat162float(v.y)};
}
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
inline float __low2float(__nv_bfloat162 v) { return __bfloat162float(v.x); }
inline float __high2float(__nv_bfloat162 v) { return __bfloat162float(v.y); }
inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v) { return {v.x, v.x}; }
inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v) { return {v.y, v.y}; }
inline __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 v, __nv_bfloat162 w) { return {v.x, w.x}; }
inline __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 v, __nv_bfloat162 w) { return {v.y, w.y}; }
inline __nv_bfloat16 __short_as_bfloat16(short x) { return mk_bits<__nv_bfloat16>(x); }
inline short __bfloat16_as_short(__nv_bfloat16 x) { return static_cast<short>(x.bits); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return mk_bits<__nv_bfloat16>(x); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 operator+(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __float2bfloat16(__bfloat162float(x) + __bfloat162float(y));
}
inline __nv_bfloat16& __nv_bfloat16::operator+=(__nv_bfloat16 y) { return *this = *this + y; }
inline __nv_bfloat16 operator-(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __float2bfloat16(__bfloat162float(x) - __bfloat162float(y));
}
inline __nv_bfloat16& __nv_bfloat16::operator-=(__nv_bfloat16 y) { return *this = *this - y; }
inline __nv_bfloat16 operator*(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __float2bfloat16(__bfloat162float(x) * __bfloat162float(y));
}
inline __nv_bfloat16& __nv_bfloat16::operator*=(__nv_bfloat16 y) { return *this = *this * y; }
inline __nv_bfloat16 operator/(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __float2bfloat16(__bfloat162float(x) / __bfloat162float(y));
}
inline __nv_bfloat16& __nv_bfloat16::operator/=(__nv_bfloat16 y) { return *this = *this / y; }
inline __nv_bfloat16 operator-(__nv_bfloat16 x) {
  x.bits ^= 0x8000;
  return x;
}
inline bool operator==(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __bfloat162float(x) == __bfloat162float(y);
}
inline bool operator!=(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __bfloat162float(x) != __bfloat162float(y);
}
inline bool operator<(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __bfloat162float(x) < __bfloat162float(y);
}
inline bool operator<=(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __bfloat162float(x) <= __bfloat162float(y);
}
inline bool operator>(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __bfloat162float(x) > __bfloat162float(y);
}
inline bool operator>=(__nv_bfloat16 x, __nv_bfloat16 y) {
  return __bfloat162float(x) >= __bfloat162float(y);
}
inline __nv_bfloat16 __hadd(__nv_bfloat16 x, __nv_bfloat16 y) { return x + y; }
inline __nv_bfloat162 __hadd2(__nv_bfloat162 x, __nv_bfloat162 y) { return {x.x + y.x, x.y + y.y}; }
inline __nv_bfloat162 operator+(__nv_bfloat162 x, __nv_bfloat162 y) {
  return {x.x + y.x, x.y + y.y};
}
inline __nv_bfloat16 __hsub(__nv_bfloat16 x, __nv_bfloat16 y) { return x - y; }
inline __nv_bfloat162 __hsub2(__nv_bfloat162 x, __nv_bfloat162 y) { return {x.x - y.x, x.y - y.y}; }
inline __nv_bfloat162 operator-(__nv_bfloat162 x, __nv_bfloat162 y) {
  return {x.x - y.x, x.y - y.y};
}
inline __nv_bfloat16 __hmul(__nv_bfloat16 x, __nv_bfloat16 y) { return x * y; }
inline __nv_bfloat162 __hmul2(__nv_bfloat162 x, __nv_bfloat162 y) { return {x.x * y.x, x.y * y.y}; }
inline __nv_bfloat162 operator*(__nv_bfloat162 x, __nv_bfloat162 y) {
  return {x.x * y.x, x.y * y.y};
}
inline __nv_bfloat16 __hdiv(__nv_bfloat16 x, __nv_bfloat16 y) { return x / y; }
inline __nv_bfloat162 __h2div(__nv_bfloat162 x, __nv_bfloat162 y) { return {x.x / y.x, x.y / y.y}; }
inline __nv_bfloat162 operator/(__nv_bfloat162 x, __nv_bfloat162 y) {
  return {x.x / y.x, x.y / y.y};
}
inline __nv_bfloat16 __hneg(__nv_bfloat16 x) { return -x; }
inline __nv_bfloat16 __habs(__nv_bfloat16 x) {
  x.bits &= 0x7fff;
  return x;
}
// The product of two bfloat16 numbers is exact in float64, and the sum nearly so.
inline __nv_bfloat16 __hfma(__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z) {
  return __float2bfloat16(
      float(double(__bfloat162float(x)) * __bfloat162float(y) + __bfloat162float(z)));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 x, __nv_bfloat162 y, __nv_bfloat162 z) {
  return {__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y)};
}
inline __nv_bfloat16 __hmax(__nv_bfloat16 x, __nv_bfloat16 y) {  // of a number and NaN, the number
  if (x != x && y == y) return y;
  return y != y && x == x ? x : __float2bfloat16(fmaxf(__bfloat162float(x), __bfloat162float(y)));
}
inline __nv_bfloat162 __hmax2(__nv_bfloat162 x, __nv_bfloat162 y) {
  return {__hmax(x.x, y.x), __hmax(x.y, y.y)};
}
inline __nv_bfloat16 __hmin(__nv_bfloat16 x, __nv_bfloat16 y) {  // of a number and NaN, the number
  if (x != x && y == y) return y;
  return y != y && x == x ? x : __float2bfloat16(fminf(__bfloat162float(x), __bfloat162float(y)));
}
inline __nv_bfloat162 __hmin2(__nv_bfloat162 x, __nv_bfloat162 y) {
  return {__hmin(x.x, y.x), __hmin(x.y, y.y)};
}
inline bool __heq(__nv_bfloat16 x, __nv_bfloat16 y) { return x == y; }
inline bool __hne(__nv_bfloat16 x, __nv_bfloat16 y) { return x != y; }
inline bool __hlt(__nv_bfloat16 x, __nv_bfloat16 y) { return x < y; }
inline bool __hle(__nv_bfloat16 x, __nv_bfloat16 y) { return x <= y; }
inline bool __hgt(__nv_bfloat16 x, __nv_bfloat16 y) { return x > y; }
inline bool __hge(__nv_bfloat16 x, __nv_bfloat16 y) { return x >= y; }
inline bool __hisnan(__nv_bfloat16 x) { return __bfloat162float(x) != __bfloat162float(x); }
inline __nv_bfloat16 hexp(__nv_bfloat16 x) { return __float2bfloat16(expf(__bfloat162float(x))); }
inline __nv_bfloat16 hexp2(__nv_bfloat16 x) { return __float2bfloat16(exp2f(__bfloat162float(x))); }
inline __nv_bfloat16 hlog(__nv_bfloat16 x) { return __float2bfloat16(logf(__bfloat162float(x))); }
inline __nv_bfloat16 hlog2(__nv_bfloat16 x) { return __float2bfloat16(log2f(__bfloat162float(x))); }
inline __nv_bfloat16 hsqrt(__nv_bfloat16 x) { return __float2bfloat16(sqrtf(__bfloat162float(x))); }
inline __nv_bfloat16 hrsqrt(__nv_bfloat16 x) {
  return __float2bfloat16(rsqrtf(__bfloat162float(x)));
}
inline __nv_bfloat16 hsin(__nv_bfloat16 x) { return __float2bfloat16(sinf(__bfloat162float(x))); }
inline __nv_bfloat16 hcos(__nv_bfloat16 x) { return __float2bfloat16(cosf(__bfloat162float(x))); }
inline __nv_bfloat16 hfloor(__nv_bfloat16 x) {
  return __float2bfloat16(floorf(__bfloat162float(x)));
}
inline __nv_bfloat16 hceil(__nv_bfloat16 x) { return __float2bfloat16(ceilf(__bfloat162float(x))); }
inline __nv_bfloat16 hrint(__nv_bfloat16 x) { return __float2bfloat16(rintf(__bfloat162float(x))); }
inline __nv_bfloat16 hrcp(__nv_bfloat16 x) { return __float2bfloat16(1.0f / __bfloat162float(x)); }
#define MK_H __nv_bfloat16
#define MK_H2 __nv_bfloat162
#define MK_NARROW __float2bfloat16
#define MK_WIDE __bfloat162float
#define MK_TO_WHOLE(name, how) __bfloat162##name##how
#define MK_FROM_WHOLE(name) __##name##2bfloat16_rn
#include "half_more.h"
#undef MK_H
#undef MK_H2
#undef MK_NARROW
#undef MK_WIDE
#undef MK_TO_WHOLE
#undef MK_FROM_WHOLE
