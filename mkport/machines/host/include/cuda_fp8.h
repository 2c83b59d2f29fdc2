// Numbers of eight bits, as cuda_fp8.h has them, for an ordinary C++ compiler: to nearest even, what
// is too large becomes the largest number. Source: NVIDIA's CUDA math manual.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
struct __half_raw {
  unsigned short x;
  __half_raw() = default;
  __half_raw(__half h) : x(h.bits) {}
  operator __half() const { return __ushort_as_half(x); }
};
struct __half2_raw {
  unsigned short x, y;
  operator __half2() const { return {__ushort_as_half(x), __ushort_as_half(y)}; }
};

// A number of `fraction` bits behind the point and exponents from 1 - bias on, up to `most`.
inline unsigned mk_to_fp8(float x, int fraction, int bias, float most, unsigned nan, unsigned above) {
  const unsigned sign = __float_as_uint(x) >> 24 & 0x80;
  const float size = fabsf(x);
  if (size != size) return nan;
  int exponent;
  frexpf(size, &exponent);  // size is less than 2 to this
  const int low = 1 - bias;
  const float step = ldexpf(1.0f, (exponent - 1 < low ? low : exponent - 1) - fraction);
  const float rounded = rintf(size / step) * step;
  if (!(rounded <= most)) return sign | above;
  if (rounded < ldexpf(1.0f, low)) return sign | unsigned(rounded / ldexpf(1.0f, low - fraction));
  frexpf(rounded, &exponent);
  const unsigned part = unsigned(rounded / ldexpf(1.0f, exponent - 1 - fraction));
  return sign | unsigned(exponent - 1 + bias) << fraction | (part & ((1u << fraction) - 1));
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t how,
                                                __nv_fp8_interpretation_t kind) {
  const bool held = how == __NV_SATFINITE;
  return static_cast<__nv_fp8_storage_t>(
      kind == __NV_E4M3 ? mk_to_fp8(x, 3, 7, 448.0f, 0x7f, held ? 0x7e : 0x7f)
                        : mk_to_fp8(x, 2, 15, 57344.0f, 0x7f, held ? 0x7b : 0x7c));
}
inline float mk_from_fp8(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t kind) {
  const int fraction = kind == __NV_E4M3 ? 3 : 2, bias = kind == __NV_E4M3 ? 7 : 15;
  const unsigned size = bits & 0x7f, part = size & ((1u << fraction) - 1);
  const int exponent = int(size >> fraction);
  float x = exponent ? ldexpf(float(part | 1u << fraction), exponent - bias - fraction)
                     : ldexpf(float(part), 1 - bias - fraction);
  if (kind == __NV_E4M3 ? size == 0x7f : size > 0x7c) x = NAN;
  if (kind == __NV_E5M2 && size == 0x7c) x = INFINITY;
  return bits & 0x80 ? -x : x;
}
inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t how,
                                                 __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8(mk_odd(x), how, kind);
}
inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw x, __nv_saturation_t how,
                                                  __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8(__half2float(x), how, kind);
}
inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t how,
                                                     __nv_fp8_interpretation_t kind) {
  return static_cast<__nv_fp8x2_storage_t>(__nv_cvt_float_to_fp8(v.x, how, kind) |
                                           __nv_cvt_float_to_fp8(v.y, how, kind) << 8);
}
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t kind) {
  return __float2half(mk_from_fp8(x, kind));
}
inline __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x,
                                              __nv_fp8_interpretation_t kind) {
  return {__nv_cvt_fp8_to_halfraw(x & 0xff, kind).x, __nv_cvt_fp8_to_halfraw(x >> 8, kind).x};
}

#define MK_FP8(name, kind)                                                                      \
  struct name {                                                                                 \
    __nv_fp8_storage_t __x;                                                                     \
    name() = default;                                                                           \
    explicit name(float x) : __x(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, kind)) {}             \
    explicit name(double x) : __x(__nv_cvt_double_to_fp8(x, __NV_SATFINITE, kind)) {}           \
    explicit name(__half x) : name(__half2float(x)) {}                                          \
    explicit name(__nv_bfloat16 x) : name(__bfloat162float(x)) {}                               \
    explicit operator float() const { return mk_from_fp8(__x, kind); }                          \
    explicit operator double() const { return mk_from_fp8(__x, kind); }                         \
    explicit operator __half() const { return __float2half(float(*this)); }                     \
    explicit operator __nv_bfloat16() const { return __float2bfloat16(float(*this)); }          \
    explicit operator bool() const { return __x & 0x7f; }                                       \
  };
#define MK_FP8X2(name, kind)                                                                    \
  struct name {                                                                                 \
    __nv_fp8x2_storage_t __x;                                                                   \
    name() = default;                                                                           \
    explicit name(float2 v) : __x(__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, kind)) {}         \
    explicit name(__half2 v) : name(__half22float2(v)) {}                                       \
    explicit name(__nv_bfloat162 v) : name(__bfloat1622float2(v)) {}                            \
    explicit operator float2() const {                                                          \
      return {mk_from_fp8(__x & 0xff, kind), mk_from_fp8(__x >> 8, kind)};                      \
    }                                                                                           \
    explicit operator __half2() const { return __float22half2_rn(float2(*this)); }              \
  };
#define MK_FP8X4(name, kind)                                                                    \
  struct name {                                                                                 \
    __nv_fp8x4_storage_t __x;                                                                   \
    name() = default;                                                                           \
    explicit name(float4 v)                                                                     \
        : __x(__nv_cvt_float2_to_fp8x2({v.x, v.y}, __NV_SATFINITE, kind) |                      \
              unsigned(__nv_cvt_float2_to_fp8x2({v.z, v.w}, __NV_SATFINITE, kind)) << 16) {}    \
    explicit operator float4() const {                                                          \
      return {mk_from_fp8(__x & 0xff, kind), mk_from_fp8(__x >> 8 & 0xff, kind),                \
              mk_from_fp8(__x >> 16 & 0xff, kind), mk_from_fp8(__x >> 24, kind)};               \
    }                                                                                           \
  };
MK_FP8(__nv_fp8_e4m3, __NV_E4M3)
MK_FP8(__nv_fp8_e5m2, __NV_E5M2)
MK_FP8X2(__nv_fp8x2_e4m3, __NV_E4M3)
MK_FP8X2(__nv_fp8x2_e5m2, __NV_E5M2)
MK_FP8X4(__nv_fp8x4_e4m3, __NV_E4M3)
MK_FP8X4(__nv_fp8x4_e5m2, __NV_E5M2)
#undef MK_FP8
#undef MK_FP8X2
#undef MK_FP8X4
