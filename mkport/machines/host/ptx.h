// What single PTX instructions do, for an ordinary C++ compiler: inline assembly is written as calls
// of these by mkport/port/ptx.py. A register has 64 bits, of which an instruction takes as many as
// its type has. An approximation of the GPU's is the C library's function here.
// Source: NVIDIA's PTX manual.
#pragma once
#include "include/cuda_bf16.h"
#include "include/cuda_fp16.h"

namespace mk_ptx {

typedef uint64_t R;
template <class T>
inline T get(R r) {
  T x;
  memcpy(&x, &r, sizeof x);
  return x;
}
template <class T>
inline R put(T x) {
  if constexpr (std::is_integral<T>::value) {
    return static_cast<R>(static_cast<int64_t>(x));  // signed numbers fill what is above them
  } else {
    R r = 0;
    memcpy(&r, &x, sizeof x);
    return r;
  }
}
template <class T>
inline void out(T& to, R r) {
  memcpy(&to, &r, sizeof to);
}

// Addresses. In shared memory they have 32 bits, the low ones of a pointer.
template <class T>
inline T* global(R address, int64_t more) {
  return reinterpret_cast<T*>(address + more);
}
template <class T>
inline T* shared(R address, int64_t more) {
  const intptr_t near = reinterpret_cast<intptr_t>(mk_shared());
  return reinterpret_cast<T*>(near + int32_t(uint32_t(address + more) - uint32_t(near)));
}
template <class T>
inline R load(const T* p) {
  return put<T>(*p);
}
template <class T>
inline void store(T* p, R r) {
  *p = get<T>(r);
}
inline void copy(R to, int64_t to_more, R from, int64_t from_more, int bytes, int there) {
  mk_copy_later(shared<char>(to, to_more), global<char>(from, from_more), bytes, there);
}
inline void end_copies() { mk_end_copies(); }
inline void wait_copies(int groups) { mk_wait_copies(groups); }

// Arithmetic.
inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }
template <class T>
inline T sum(T x, T y) {
  if constexpr (std::is_integral<T>::value)
    return T(std::make_unsigned_t<T>(x) + std::make_unsigned_t<T>(y));
  else
    return x + y;
}
template <class T>
inline T difference(T x, T y) {
  if constexpr (std::is_integral<T>::value)
    return T(std::make_unsigned_t<T>(x) - std::make_unsigned_t<T>(y));
  else
    return x - y;
}
template <class T>
inline T product(T x, T y) {  // of whole numbers the low half
  if constexpr (std::is_integral<T>::value)
    return T(uint64_t(x) * uint64_t(y));
  else
    return x * y;
}
template <class T>
inline T high(T x, T y) {
  return T(__int128(x) * __int128(y) >> sizeof(T) * 8);
}
inline float fused(float x, float y, float z) { return fmaf(x, y, z); }
inline double fused(double x, double y, double z) { return fma(x, y, z); }
inline __half fused(__half x, __half y, __half z) { return __hfma(x, y, z); }
inline __half2 fused(__half2 x, __half2 y, __half2 z) { return __hfma2(x, y, z); }
inline __nv_bfloat16 fused(__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z) {
  return __hfma(x, y, z);
}
inline __nv_bfloat162 fused(__nv_bfloat162 x, __nv_bfloat162 y, __nv_bfloat162 z) {
  return __hfma2(x, y, z);
}
template <class T>
inline T least(T x, T y) { return min(x, y); }
template <class T>
inline T most(T x, T y) { return max(x, y); }
#define MK_HALVES(T, of_min, of_max)                          \
  inline T least(T x, T y) { return of_min(x, y); }           \
  inline T most(T x, T y) { return of_max(x, y); }
MK_HALVES(__half, __hmin, __hmax)
MK_HALVES(__half2, __hmin2, __hmax2)
MK_HALVES(__nv_bfloat16, __hmin, __hmax)
MK_HALVES(__nv_bfloat162, __hmin2, __hmax2)
#undef MK_HALVES
template <class T>
inline T shifted_left(T x, uint32_t by) { return by < sizeof(T) * 8 ? T(x << by) : T(0); }
template <class T>
inline T shifted_right(T x, uint32_t by) {
  const uint32_t most = sizeof(T) * 8 - 1;
  return by <= most ? T(x >> by) : std::is_signed<T>::value ? T(x >> most) : T(0);
}
inline uint32_t logic(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t made = 0;
  for (int i = 0; i < 8; i++)
    if (table >> i & 1) made |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return made;
}
template <class T>
inline T field(T x, uint32_t at, uint32_t count) {  // bits of a number, the sign with a signed one
  const uint32_t bits = sizeof(T) * 8;
  at &= 0xff, count &= 0xff;
  if (count == 0) return 0;
  const uint64_t last = at + count - 1 < bits - 1 ? at + count - 1 : bits - 1;
  const bool sign = std::is_signed<T>::value && (uint64_t(x) >> last & 1);
  uint64_t made = 0;
  for (uint32_t i = 0; i < bits; i++) {
    const bool bit = i < count && at + i < bits ? uint64_t(x) >> (at + i) & 1 : sign;
    made |= uint64_t(bit) << i;
  }
  return T(made);
}
inline uint32_t inserted(uint32_t x, uint32_t into, uint32_t at, uint32_t count) {
  at &= 0xff, count &= 0xff;
  for (uint32_t i = 0; i < count && at + i < 32; i++)
    into = (into & ~(1u << (at + i))) | (x >> i & 1) << (at + i);
  return into;
}
inline uint32_t tf32(float x) {  // to nearest, ties away from zero
  return (__float_as_uint(x) + 0x1000) & 0xffffe000;
}

// Collectives of a warp.
inline R shuffled(char way, R x, R by, R limits, unsigned mask, R* there = nullptr) {
  const int lane = mk_lane(), segment = limits >> 8 & 31, clamp = limits & 31, b = by & 31;
  const int first = lane & segment, last = first | (clamp & ~segment);
  const int from = way == 'u' ? lane - b : way == 'd' ? lane + b : way == 'b' ? lane ^ b
                                                                 : first | (b & ~segment);
  const bool inside = way == 'u' ? from >= last : from <= last;
  if (there) *there = inside;
  return mk_shuffle_from<uint32_t>("shfl", mask, uint32_t(x), inside ? from : lane, 0);
}
template <int count, bool turned>
inline void matrices(R* made, R row, int64_t more) {
  const uint64_t mine = reinterpret_cast<uint64_t>(shared<char>(row, more));
  const int high = mk_lane() / 4, low = mk_lane() % 4;
  for (int i = 0; i < count; i++) {
    if (turned) {
      const uint64_t p = __shfl_sync(~0u, mine, i * 8 + low * 2);
      const uint64_t q = __shfl_sync(~0u, mine, i * 8 + low * 2 + 1);
      made[i] = *reinterpret_cast<const uint16_t*>(p + high * 2) |
                uint32_t(*reinterpret_cast<const uint16_t*>(q + high * 2)) << 16;
    } else {
      const uint64_t p = __shfl_sync(~0u, mine, i * 8 + high);
      made[i] = *reinterpret_cast<const uint32_t*>(p + low * 4);
    }
  }
}
struct Product {
  uint32_t a[4], b[2];
  float sums[4];
};
// D = A B + C for rows of A on 16 and columns of B on 8, in the order of k.
template <class H, int K>
inline void multiplied(Product& given) {
  mk_meet(~0u, "mma", 0, &given, [](void** all, uint32_t) {
    auto half = [&](bool right, int lane, int which, int part) {
      const Product& p = *static_cast<const Product*>(all[lane]);
      return float(get<H>((right ? p.b : p.a)[which] >> 16 * part));
    };
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++) {
        const int row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + (i & 1);
        float& sum = static_cast<Product*>(all[lane])->sums[i];
        for (int k = 0; k < K; k++)
          sum = fmaf(half(false, row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k & 1),
                     half(true, column * 4 + k % 8 / 2, k / 8, k & 1), sum);
      }
  });
}
template <class H, int K>
inline void product_float(R* d, const R* a, const R* b, const R* c) {
  Product given = {};
  for (int i = 0; i < K / 4; i++) given.a[i] = uint32_t(a[i]);
  for (int i = 0; i < K / 8; i++) given.b[i] = uint32_t(b[i]);
  for (int i = 0; i < 4; i++) given.sums[i] = get<float>(c[i]);
  multiplied<H, K>(given);
  for (int i = 0; i < 4; i++) d[i] = put<float>(given.sums[i]);
}
template <class H, int K>
inline void product_half(R* d, const R* a, const R* b, const R* c) {
  R wide[4];
  for (int i = 0; i < 4; i++) wide[i] = put<float>(float(get<H>(c[i / 2] >> i % 2 * 16)));
  product_float<H, K>(wide, a, b, wide);
  for (int i = 0; i < 2; i++)
    d[i] = put<H>(H(get<float>(wide[2 * i]))) | put<H>(H(get<float>(wide[2 * i + 1]))) << 16;
}

}  // namespace mk_ptx
