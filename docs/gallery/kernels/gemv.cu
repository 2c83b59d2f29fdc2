// y = W x, a warp a row; the half-precision weights are read as pairs.
#include <cuda_fp16.h>

__device__ __forceinline__ float warpReduceSum(float val) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) val += __shfl_down_sync(0xffffffff, val, offset);
  return val;
}

extern "C" __global__ void gemv_fp16(const half *__restrict__ W, const half *__restrict__ x,
                                     float *y, int rows, int cols) {
  const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x & 31;
  if (warp >= rows) return;  // a warp leaves as one
  const half2 *row = reinterpret_cast<const half2 *>(W + (size_t)warp * cols);
  const half2 *vec = reinterpret_cast<const half2 *>(x);
  float sum = 0.f;
  for (int i = lane; i < cols / 2; i += 32) {
    const float2 a = __half22float2(row[i]);
    const float2 b = __half22float2(vec[i]);
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
  }
  sum = warpReduceSum(sum);
  if (lane == 0) y[warp] = sum;
}
