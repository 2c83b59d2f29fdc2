// out = silu(gate) * up in bfloat16, a grid-stride loop over 16-byte pieces.
#include <cuda_bf16.h>
#include <cstdint>

struct alignas(16) Pack8 {
  __nv_bfloat16 v[8];
};

template <typename T>
__device__ __forceinline__ T silu(const T &x) {
  return (T)(((float)x) / (1.0f + expf(-(float)x)));
}

__global__ void silu_and_mul(__nv_bfloat16 *__restrict__ out, const __nv_bfloat16 *__restrict__ in,
                             const int tokens, const int d) {
  const int pieces = d / 8;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (int64_t)tokens * pieces;
       i += (int64_t)gridDim.x * blockDim.x) {
    const int64_t token = i / pieces, piece = i % pieces;
    const Pack8 gate = reinterpret_cast<const Pack8 *>(in + token * 2 * d)[piece];
    const Pack8 up = reinterpret_cast<const Pack8 *>(in + token * 2 * d + d)[piece];
    Pack8 result;
#pragma unroll
    for (int k = 0; k < 8; ++k)
      result.v[k] = __float2bfloat16(__bfloat162float(silu(gate.v[k])) * __bfloat162float(up.v[k]));
    reinterpret_cast<Pack8 *>(out + token * d)[piece] = result;
  }
}
