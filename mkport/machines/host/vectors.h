// CUDA's vector types, for an ordinary C++ compiler. Stands in names.h.
#pragma once

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
