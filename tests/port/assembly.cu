// Inline PTX in the ways that kernels have it.
#include <cuda_fp16.h>
#include <stdint.h>

#define COPY16(to, from) \
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from))

__device__ __forceinline__ uint32_t place_of(const void* p) {
  uint32_t at;
  asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }" : "=r"(at) : "l"(p));
  return at;
}

__global__ void numbers(const float* x, int* y) {
  const int i = threadIdx.x;
  float a = x[i], e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(a));
  int r[12];
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r[0]) : "r"(0x0ff0f00f), "r"(0x33333333), "r"(i));
  asm("prmt.b32 %0, %1, %2, 0x5140;" : "=r"(r[1]) : "r"(0x03020100), "r"(0x07060504 + i));
  asm("bfe.s32 %0, %1, 4, 8;" : "=r"(r[2]) : "r"(0xf80 + i));
  asm("bfe.u32 %0, %1, 4, 8;" : "=r"(r[3]) : "r"(0xf80 + i));
  asm("bfi.b32 %0, %1, %2, 8, 4;" : "=r"(r[4]) : "r"(i), "r"(0x12345678));
  asm("{\n\t.reg .pred p;\n\tsetp.gt.s32 p, %1, 20; // more\n\tselp.b32 %0, 7, 9, p;\n}"
      : "=r"(r[5]) : "r"(i));
  asm("mad.lo.s32 %0, %1, %2, %3;" : "=r"(r[6]) : "r"(i - 16), "r"(-3), "n"(5));
  asm("mul.hi.u32 %0, %1, %2;" : "=r"(r[7]) : "r"(0xffffffff - i), "r"(3));
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(r[8]) : "f"(a * 2.5f));
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r[9]) : "f"(a), "f"(2.0f));
  asm("fma.rn.f16x2 %0, %0, %1, %1;" : "+r"(r[9]) : "r"(0x3c004000));
  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;"
               : "=r"(r[10]) : "r"(i * i), "n"(5));
  asm("mov.u32 %0, %%laneid;" : "=r"(r[11]));
  for (int n = 0; n < 12; n++) y[i * 13 + n] = r[n];
  y[i * 13 + 12] = __float_as_int(e);
}

// D = A B + C, A [16, 16] and B [16, 8] row by row in half precision, C and D [16, 8].
__global__ void product(const half* a, const half* b, const float* c, float* d) {
  __shared__ __align__(16) half left[16 * 16];
  __shared__ __align__(16) half right[16 * 8];
  const int i = threadIdx.x;
  COPY16(place_of(left + i * 8), a + i * 8);
  if (i < 16) COPY16(place_of(right + i * 8), b + i * 8);
  asm volatile("cp.async.commit_group;\n" ::);
  asm volatile("cp.async.wait_group %0;\n" ::"n"(0));
  __syncthreads();
  uint32_t m[4], n[2];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(place_of(left + i % 16 * 16 + i / 16 * 8)));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(n[0]), "=r"(n[1]) : "r"(place_of(right + i % 16 * 8)));
  float4 sums;
  const float* from = c + i / 4 * 8 + i % 4 * 2;
  asm volatile("ld.global.L1::no_allocate.v2.f32 {%0, %1}, [%2];"
               : "=f"(sums.x), "=f"(sums.y) : "l"(from));
  asm volatile("ld.global.cs.v2.f32 {%0, %1}, [%2+256];"
               : "=f"(sums.z), "=f"(sums.w) : "l"(from));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums.x), "+f"(sums.y), "+f"(sums.z), "+f"(sums.w)
               : "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3]), "r"(n[0]), "r"(n[1]));
  float* to = d + i / 4 * 8 + i % 4 * 2;
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(sums.x), "f"(sums.y) : "memory");
  asm volatile("st.global.cg.v2.f32 [%0], {%1, %2};" ::"l"(to + 64), "f"(sums.z), "f"(sums.w));
}

__global__ void unknown(const float* x, float* y, int n) {
  float v = x[threadIdx.x];
  if (n > 3) asm("cos.approx.f32 %0, %0;\n\tmad.hi.cc.u32 %1, %1, %1, %1;" : "+f"(v), "+r"(n));
  y[threadIdx.x] = v;
}
