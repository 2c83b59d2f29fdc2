// CUDA's integer functions beyond C++'s, those on a register's parts among them, for an ordinary C++
// compiler. Stands in arithmetic.h.
#pragma once

inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(unsigned(x))) << 32 | __brev(unsigned(x >> 32));
}
inline int __hadd(int x, int y) { return int((int64_t(x) + y) >> 1); }
inline int __rhadd(int x, int y) { return int((int64_t(x) + y + 1) >> 1); }
inline unsigned __uhadd(unsigned x, unsigned y) { return unsigned((uint64_t(x) + y) >> 1); }
inline unsigned __urhadd(unsigned x, unsigned y) { return unsigned((uint64_t(x) + y + 1) >> 1); }
inline unsigned __sad(int x, int y, unsigned z) {
  return (x < y ? unsigned(y) - unsigned(x) : unsigned(x) - unsigned(y)) + z;
}
inline unsigned __usad(unsigned x, unsigned y, unsigned z) { return (x < y ? y - x : x - y) + z; }
inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xffffff) * (y & 0xffffff); }
inline long long __mul64hi(long long x, long long y) {
  return static_cast<long long>(__int128(x) * y >> 64);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned by) {
  return by >= 32 ? low : __funnelshift_l(low, high, by);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned by) {
  return by >= 32 ? high : __funnelshift_r(low, high, by);
}
template <class S, class B>  // two of x's halves with two of y's bytes, from `first` on
inline int mk_dp2a(unsigned x, unsigned y, int sum, int first) {
  for (int i = 0; i < 2; i++) sum += int(S(x >> 16 * i)) * int(B(y >> 8 * (first + i)));
  return sum;
}
inline int __dp2a_lo(int x, int y, int z) { return mk_dp2a<int16_t, int8_t>(x, y, z, 0); }
inline int __dp2a_hi(int x, int y, int z) { return mk_dp2a<int16_t, int8_t>(x, y, z, 2); }
inline unsigned __dp2a_lo(unsigned x, unsigned y, unsigned z) {
  return mk_dp2a<uint16_t, uint8_t>(x, y, int(z), 0);
}
inline unsigned __dp2a_hi(unsigned x, unsigned y, unsigned z) {
  return mk_dp2a<uint16_t, uint8_t>(x, y, int(z), 2);
}

// A register as parts of one type: what `join` makes of each two, of which the low bits are kept.
template <class Part, class Join>
inline unsigned mk_parts(unsigned x, unsigned y, Join join) {
  constexpr unsigned bits = sizeof(Part) * 8, mask = (1u << bits) - 1;
  unsigned z = 0;
  for (unsigned at = 0; at < 32; at += bits)
    z |= (unsigned(join(int(Part(x >> at)), int(Part(y >> at)))) & mask) << at;
  return z;
}
template <class Part>
inline int mk_saturated(int x) {
  return x < std::numeric_limits<Part>::min()   ? std::numeric_limits<Part>::min()
         : x > std::numeric_limits<Part>::max() ? std::numeric_limits<Part>::max()
                                                : x;
}
#define MK_PARTS(name, count, Part, expression)                                    \
  inline unsigned __v##name##count(unsigned x, unsigned y) {                       \
    typedef Part part;                                                             \
    return mk_parts<part>(x, y, [](int a, int b) { return int(expression); });     \
  }
#define MK_COMPARED(name, count, Part, expression)              \
  MK_PARTS(cmp##name, count, Part, (expression) ? -1 : 0)       \
  MK_PARTS(set##name, count, Part, (expression) ? 1 : 0)
#define MK_SIMD(count, S, U)                                             \
  MK_PARTS(add, count, U, a + b)                                         \
  MK_PARTS(sub, count, U, a - b)                                         \
  MK_PARTS(addss, count, S, mk_saturated<part>(a + b))                   \
  MK_PARTS(addus, count, U, mk_saturated<part>(a + b))                   \
  MK_PARTS(subss, count, S, mk_saturated<part>(a - b))                   \
  MK_PARTS(subus, count, U, mk_saturated<part>(a - b))                   \
  MK_PARTS(avgs, count, S, (a + b + (a + b >= 0)) >> 1)                  \
  MK_PARTS(avgu, count, U, (a + b + 1) >> 1)                             \
  MK_PARTS(haddu, count, U, (a + b) >> 1)                                \
  MK_PARTS(mins, count, S, b < a ? b : a)                                \
  MK_PARTS(maxs, count, S, a < b ? b : a)                                \
  MK_PARTS(minu, count, U, b < a ? b : a)                                \
  MK_PARTS(maxu, count, U, a < b ? b : a)                                \
  MK_PARTS(absdiffs, count, S, a < b ? b - a : a - b)                    \
  MK_PARTS(absdiffu, count, U, a < b ? b - a : a - b)                    \
  MK_COMPARED(eq, count, U, a == b)                                      \
  MK_COMPARED(ne, count, U, a != b)                                      \
  MK_COMPARED(lts, count, S, a < b)                                      \
  MK_COMPARED(les, count, S, a <= b)                                     \
  MK_COMPARED(gts, count, S, a > b)                                      \
  MK_COMPARED(ges, count, S, a >= b)                                     \
  MK_COMPARED(ltu, count, U, a < b)                                      \
  MK_COMPARED(leu, count, U, a <= b)                                     \
  MK_COMPARED(gtu, count, U, a > b)                                      \
  MK_COMPARED(geu, count, U, a >= b)                                     \
  inline unsigned __vabs##count(unsigned x) {                            \
    return mk_parts<S>(x, 0, [](int a, int) { return a < 0 ? -a : a; }); \
  }                                                                      \
  inline unsigned __vneg##count(unsigned x) {                            \
    return mk_parts<S>(x, 0, [](int a, int) { return -a; });             \
  }                                                                      \
  inline unsigned __vabsss##count(unsigned x) {                          \
    return mk_parts<S>(x, 0, [](int a, int) { return mk_saturated<S>(a < 0 ? -a : a); }); \
  }                                                                      \
  inline unsigned __vnegss##count(unsigned x) {                          \
    return mk_parts<S>(x, 0, [](int a, int) { return mk_saturated<S>(-a); }); \
  }                                                                      \
  inline unsigned __vsads##count(unsigned x, unsigned y) {               \
    return mk_summed<U>(__vabsdiffs##count(x, y));                       \
  }                                                                      \
  inline unsigned __vsadu##count(unsigned x, unsigned y) {               \
    return mk_summed<U>(__vabsdiffu##count(x, y));                       \
  }
template <class U>
inline unsigned mk_summed(unsigned x) {
  unsigned sum = 0;
  for (unsigned at = 0; at < 32; at += sizeof(U) * 8) sum += U(x >> at);
  return sum;
}
MK_SIMD(2, int16_t, uint16_t)
MK_SIMD(4, int8_t, uint8_t)
#undef MK_SIMD
#undef MK_COMPARED
#undef MK_PARTS
