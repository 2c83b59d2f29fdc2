// CUDA's conversions between numbers, and arithmetic with a rounding of its own, for an ordinary C++
// compiler. Stands in arithmetic.h.
#pragma once
#include <fenv.h>

#include <limits>

// A whole number, at the type's ends where x lies beyond them. NaN is zero, but half of the range
// where one side has 64 bits. Source: the PTX manual, cvt.
template <class I, class F>
inline I mk_whole(F x) {
  typedef std::numeric_limits<I> ends;
  const bool wide = sizeof(F) == 8 || sizeof(I) == 8;
  if (x != x) return wide ? I(std::make_unsigned_t<I>(1) << (sizeof(I) * 8 - 1)) : I(0);
  if (x >= ldexp(1.0, ends::digits)) return ends::max();
  if (x < double(ends::min())) return ends::min();
  return I(x);
}
// What `made` makes while numbers are rounded so.
template <class Make>
inline auto mk_rounded(int how, Make made) {
  const int before = fegetround();
  fesetround(how);
  const volatile auto result = made();
  fesetround(before);
  return result;
}
// A number that a narrower type rounds to nearest even as it would the double: its last bit says
// that something was cut off.
inline float mk_odd(double x) {
  const float near = mk_rounded(FE_TOWARDZERO, [&] { volatile double y = x; return float(y); });
  if (near != near || double(near) == x || near - near != 0.0f) return near;
  return mk_bits<float>(mk_bits<unsigned>(near) | 1);
}

// A whole number as a half-precision one, in one rounding.
template <class H, class I, class Narrow>
inline H mk_narrow_whole(I x, Narrow narrow) {
  const bool less = x < I(0);
  const unsigned long long size = less ? -static_cast<unsigned long long>(x) : x;
  const unsigned long long low = size >> 53 ? size & 0x7ff : 0;  // beyond what a double has
  float cut = mk_odd(double(size - low));
  if (low) cut = mk_bits<float>(mk_bits<unsigned>(cut) | 1);
  return narrow(less ? -cut : cut);
}

inline float mk_near(float x) { return rintf(x); }
inline float mk_cut(float x) { return truncf(x); }
inline float mk_below(float x) { return floorf(x); }
inline float mk_above(float x) { return ceilf(x); }
inline double mk_near(double x) { return rint(x); }
inline double mk_cut(double x) { return trunc(x); }
inline double mk_below(double x) { return floor(x); }
inline double mk_above(double x) { return ceil(x); }
#define MK_TO_WHOLE(from, F, to, I)                                            \
  inline I __##from##2##to##_rn(F x) { return mk_whole<I>(mk_near(x)); }       \
  inline I __##from##2##to##_rz(F x) { return mk_whole<I>(mk_cut(x)); }        \
  inline I __##from##2##to##_rd(F x) { return mk_whole<I>(mk_below(x)); }      \
  inline I __##from##2##to##_ru(F x) { return mk_whole<I>(mk_above(x)); }
#define MK_TO_WHOLES(from, F)                     \
  MK_TO_WHOLE(from, F, int, int)                  \
  MK_TO_WHOLE(from, F, uint, unsigned)            \
  MK_TO_WHOLE(from, F, ll, long long)             \
  MK_TO_WHOLE(from, F, ull, unsigned long long)
MK_TO_WHOLES(float, float)
MK_TO_WHOLES(double, double)
#undef MK_TO_WHOLES
#undef MK_TO_WHOLE
#define MK_FROM(from, I, to, F)                                                      \
  inline F __##from##2##to##_rn(I x) { return F(x); }                                \
  inline F __##from##2##to##_rz(I x) {                                               \
    return mk_rounded(FE_TOWARDZERO, [&] { volatile I y = x; return F(y); });        \
  }                                                                                  \
  inline F __##from##2##to##_rd(I x) {                                               \
    return mk_rounded(FE_DOWNWARD, [&] { volatile I y = x; return F(y); });          \
  }                                                                                  \
  inline F __##from##2##to##_ru(I x) {                                               \
    return mk_rounded(FE_UPWARD, [&] { volatile I y = x; return F(y); });            \
  }
MK_FROM(int, int, float, float)
MK_FROM(uint, unsigned, float, float)
MK_FROM(ll, long long, float, float)
MK_FROM(ull, unsigned long long, float, float)
MK_FROM(ll, long long, double, double)
MK_FROM(ull, unsigned long long, double, double)
MK_FROM(double, double, float, float)
#undef MK_FROM
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
inline int __double2hiint(double x) { return int(mk_bits<long long>(x) >> 32); }
inline int __double2loint(double x) { return int(mk_bits<long long>(x)); }
inline double __hiloint2double(int high, int low) {
  return mk_bits<double>(static_cast<long long>(static_cast<unsigned long long>(high) << 32 |
                                                static_cast<unsigned>(low)));
}

#define MK_DIRECTED(name, F, suffix, how, parameters, volatiles, expression)     \
  inline F name##suffix parameters {                                             \
    return mk_rounded(how, [&] { volatiles; return F(expression); });            \
  }
#define MK_OTHERS(name, F, parameters, volatiles, expression)                              \
  MK_DIRECTED(name, F, _rz, FE_TOWARDZERO, parameters, volatiles, expression)              \
  MK_DIRECTED(name, F, _rd, FE_DOWNWARD, parameters, volatiles, expression)                \
  MK_DIRECTED(name, F, _ru, FE_UPWARD, parameters, volatiles, expression)
#define MK_BOTH(F, letter, root, fused)                                                         \
  MK_OTHERS(__##letter##add, F, (F x, F y), volatile F a = x; volatile F b = y, a + b)          \
  MK_OTHERS(__##letter##sub, F, (F x, F y), volatile F a = x; volatile F b = y, a - b)          \
  MK_OTHERS(__##letter##mul, F, (F x, F y), volatile F a = x; volatile F b = y, a * b)          \
  MK_OTHERS(__##letter##div, F, (F x, F y), volatile F a = x; volatile F b = y, a / b)          \
  MK_OTHERS(__##letter##rcp, F, (F x), volatile F a = x, F(1) / a)                              \
  MK_OTHERS(__##letter##sqrt, F, (F x), volatile F a = x, root(a))                              \
  MK_OTHERS(fused, F, (F x, F y, F z), volatile F a = x; volatile F b = y; volatile F c = z,    \
            root##_fused(a, b, c))
#define sqrtf_fused fmaf
#define sqrt_fused fma
MK_BOTH(float, f, sqrtf, __fmaf)
MK_BOTH(double, d, sqrt, __fma)
#undef sqrtf_fused
#undef sqrt_fused
#undef MK_BOTH
#undef MK_OTHERS
#undef MK_DIRECTED
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __drcp_rn(double x) { return 1.0 / x; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
