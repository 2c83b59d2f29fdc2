// The rest of half precision and of bfloat16, which differ in nothing here but their names:
// cuda_fp16.h and cuda_bf16.h include this with MK_H, MK_H2, MK_NARROW, MK_WIDE and MK_FROM_WHOLE.
#define MK_TWO(name, one)                                              \
  inline MK_H2 name(MK_H2 x, MK_H2 y) { return {one(x.x, y.x), one(x.y, y.y)}; }
#define MK_TRUTH(holds) MK_NARROW((holds) ? 1.0f : 0.0f)
#define MK_TWICE(name, one)                                            \
  inline MK_H2 name(MK_H2 x) { return {one(x.x), one(x.y)}; }

inline MK_H2 operator-(MK_H2 v) { return {-v.x, -v.y}; }
inline MK_H2& operator+=(MK_H2& x, MK_H2 y) { return x = x + y; }
inline MK_H2& operator-=(MK_H2& x, MK_H2 y) { return x = x - y; }
inline MK_H2& operator*=(MK_H2& x, MK_H2 y) { return x = x * y; }
inline MK_H2& operator/=(MK_H2& x, MK_H2 y) { return x = x / y; }
inline bool operator==(MK_H2 x, MK_H2 y) { return x.x == y.x && x.y == y.y; }
inline bool operator!=(MK_H2 x, MK_H2 y) { return !(x == y); }
MK_TWICE(__hneg2, __hneg)
MK_TWICE(__habs2, __habs)
inline MK_H __hadd_rn(MK_H x, MK_H y) { return x + y; }
inline MK_H __hsub_rn(MK_H x, MK_H y) { return x - y; }
inline MK_H __hmul_rn(MK_H x, MK_H y) { return x * y; }
MK_TWO(__hadd2_rn, __hadd)
MK_TWO(__hsub2_rn, __hsub)
MK_TWO(__hmul2_rn, __hmul)
inline MK_H mk_unit(MK_H x) { return MK_NARROW(__saturatef(MK_WIDE(x))); }  // NaN becomes zero
inline MK_H __hadd_sat(MK_H x, MK_H y) { return mk_unit(x + y); }
inline MK_H __hsub_sat(MK_H x, MK_H y) { return mk_unit(x - y); }
inline MK_H __hmul_sat(MK_H x, MK_H y) { return mk_unit(x * y); }
inline MK_H __hfma_sat(MK_H x, MK_H y, MK_H z) { return mk_unit(__hfma(x, y, z)); }
inline MK_H __hfma_relu(MK_H x, MK_H y, MK_H z) {
  const MK_H sum = __hfma(x, y, z);
  return MK_WIDE(sum) < 0.0f ? MK_NARROW(0.0f) : sum;
}
MK_TWO(__hadd2_sat, __hadd_sat)
MK_TWO(__hsub2_sat, __hsub_sat)
MK_TWO(__hmul2_sat, __hmul_sat)
inline MK_H2 __hfma2_sat(MK_H2 x, MK_H2 y, MK_H2 z) {
  return {__hfma_sat(x.x, y.x, z.x), __hfma_sat(x.y, y.y, z.y)};
}
inline MK_H2 __hfma2_relu(MK_H2 x, MK_H2 y, MK_H2 z) {
  return {__hfma_relu(x.x, y.x, z.x), __hfma_relu(x.y, y.y, z.y)};
}
inline MK_H __hmax_nan(MK_H x, MK_H y) {
  return __hisnan(x) || __hisnan(y) ? MK_NARROW(__int_as_float(0x7fffffff)) : __hmax(x, y);
}
inline MK_H __hmin_nan(MK_H x, MK_H y) {
  return __hisnan(x) || __hisnan(y) ? MK_NARROW(__int_as_float(0x7fffffff)) : __hmin(x, y);
}
MK_TWO(__hmax2_nan, __hmax_nan)
MK_TWO(__hmin2_nan, __hmin_nan)
inline int __hisinf(MK_H x) {
  const float wide = MK_WIDE(x);
  return isinf(wide) ? (wide < 0.0f ? -1 : 1) : 0;
}
inline MK_H2 __hisnan2(MK_H2 v) { return {MK_TRUTH(__hisnan(v.x)), MK_TRUTH(__hisnan(v.y))}; }
// Comparisons: of one, of both, as masks; with `u` they hold where a number is NaN.
#define MK_COMPARE(name)                                                                     \
  inline bool __h##name##u(MK_H x, MK_H y) {                                                 \
    return __hisnan(x) || __hisnan(y) || __h##name(x, y);                                    \
  }                                                                                          \
  inline MK_H2 __h##name##2(MK_H2 x, MK_H2 y) {                                              \
    return {MK_TRUTH(__h##name(x.x, y.x)), MK_TRUTH(__h##name(x.y, y.y))};                   \
  }                                                                                          \
  inline MK_H2 __h##name##u2(MK_H2 x, MK_H2 y) {                                             \
    return {MK_TRUTH(__h##name##u(x.x, y.x)), MK_TRUTH(__h##name##u(x.y, y.y))};             \
  }                                                                                          \
  inline bool __hb##name##2(MK_H2 x, MK_H2 y) {                                              \
    return __h##name(x.x, y.x) && __h##name(x.y, y.y);                                       \
  }                                                                                          \
  inline bool __hb##name##u2(MK_H2 x, MK_H2 y) {                                             \
    return __h##name##u(x.x, y.x) && __h##name##u(x.y, y.y);                                 \
  }                                                                                          \
  inline unsigned __h##name##2_mask(MK_H2 x, MK_H2 y) {                                      \
    return (__h##name(x.x, y.x) ? 0xffffu : 0u) | (__h##name(x.y, y.y) ? 0xffff0000u : 0u);  \
  }                                                                                          \
  inline unsigned __h##name##u2_mask(MK_H2 x, MK_H2 y) {                                     \
    return (__h##name##u(x.x, y.x) ? 0xffffu : 0u) |                                         \
           (__h##name##u(x.y, y.y) ? 0xffff0000u : 0u);                                      \
  }
MK_COMPARE(eq)
MK_COMPARE(ne)
MK_COMPARE(lt)
MK_COMPARE(le)
MK_COMPARE(gt)
MK_COMPARE(ge)
#undef MK_COMPARE

#define MK_FUNCTION(name, expression)                 \
  inline MK_H h##name(MK_H v) {                       \
    const float x = MK_WIDE(v);                       \
    return MK_NARROW(expression);                     \
  }
MK_FUNCTION(exp10, powf(10.0f, x))
MK_FUNCTION(log10, log10f(x))
MK_FUNCTION(tanh, tanhf(x))
MK_FUNCTION(tanh_approx, tanhf(x))
MK_FUNCTION(trunc, truncf(x))
#undef MK_FUNCTION
MK_TWICE(h2exp, hexp)
MK_TWICE(h2exp2, hexp2)
MK_TWICE(h2exp10, hexp10)
MK_TWICE(h2log, hlog)
MK_TWICE(h2log2, hlog2)
MK_TWICE(h2log10, hlog10)
MK_TWICE(h2sqrt, hsqrt)
MK_TWICE(h2rsqrt, hrsqrt)
MK_TWICE(h2sin, hsin)
MK_TWICE(h2cos, hcos)
MK_TWICE(h2floor, hfloor)
MK_TWICE(h2ceil, hceil)
MK_TWICE(h2rint, hrint)
MK_TWICE(h2trunc, htrunc)
MK_TWICE(h2rcp, hrcp)
MK_TWICE(h2tanh, htanh)
MK_TWICE(h2tanh_approx, htanh_approx)
#undef MK_TWICE
#undef MK_TWO
#undef MK_TRUTH
inline MK_H2 __lowhigh2highlow(MK_H2 v) { return {v.y, v.x}; }

// Whole numbers: to them with each rounding, from them to nearest even in one rounding.
#define MK_WHOLE(name, I)                                                                       \
  inline I MK_TO_WHOLE(name, _rn)(MK_H x) { return mk_whole<I>(rintf(MK_WIDE(x))); }            \
  inline I MK_TO_WHOLE(name, _rz)(MK_H x) { return mk_whole<I>(truncf(MK_WIDE(x))); }           \
  inline I MK_TO_WHOLE(name, _rd)(MK_H x) { return mk_whole<I>(floorf(MK_WIDE(x))); }           \
  inline I MK_TO_WHOLE(name, _ru)(MK_H x) { return mk_whole<I>(ceilf(MK_WIDE(x))); }            \
  inline MK_H MK_FROM_WHOLE(name)(I x) { return mk_narrow_whole<MK_H>(x, MK_NARROW); }
MK_WHOLE(int, int)
MK_WHOLE(uint, unsigned)
MK_WHOLE(short, short)
MK_WHOLE(ushort, unsigned short)
MK_WHOLE(ll, long long)
MK_WHOLE(ull, unsigned long long)
#undef MK_WHOLE
inline signed char MK_TO_WHOLE(char, _rz)(MK_H x) {
  return mk_whole<signed char>(truncf(MK_WIDE(x)));
}
inline unsigned char MK_TO_WHOLE(uchar, _rz)(MK_H x) {
  return mk_whole<unsigned char>(truncf(MK_WIDE(x)));
}
