// RMSNorm on a GPU: y = x / sqrt(mean x^2 + eps) * w. Ordinary kernels: a block of 256 threads a
// row, or, for many short rows, a warp a row.
//   x [rows, k] float32, w [k] float32, y [rows, k] float32, may be x; k a multiple of 4

__device__ inline float join_lanes(float x) {
  for (int mask = 16; mask; mask /= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}

// a thread's squares: vectors of 4 columns go to the threads in turn
__device__ inline float squares(const float* x, int k, int thread, int threads) {
  float sum = 0.0f;
  for (int i = thread * 4; i < k; i += threads * 4)
    for (int j = i; j < i + 4; j++) sum = __fmaf_rn(x[j], x[j], sum);
  return sum;
}

__device__ inline void scale(const float* x, const float* w, float* y, int k, float eps, float sum,
                             int thread, int threads) {
  const float mean = __fdiv_rn(sum, static_cast<float>(k));
  const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
  for (int i = thread * 4; i < k; i += threads * 4)
    for (int j = i; j < i + 4; j++) y[j] = __fmul_rn(__fmul_rn(x[j], r), w[j]);
}

extern "C" __global__ void __launch_bounds__(256)
    rmsnorm(const float* x, const float* w, float* y, int k, float eps) {
  extern __shared__ __align__(16) char shared[];
  float* sums = reinterpret_cast<float*>(shared);  // [8] of the warps
  const int thread = threadIdx.x;
  x += static_cast<long long>(blockIdx.x) * k;
  y += static_cast<long long>(blockIdx.x) * k;
  const float mine = join_lanes(squares(x, k, thread, 256));
  if (thread % 32 == 0) sums[thread / 32] = mine;
  __syncthreads();
  float sum = sums[0];
  for (int warp = 1; warp < 8; warp++) sum = __fadd_rn(sum, sums[warp]);
  scale(x, w, y, k, eps, sum, thread, 256);
}

extern "C" __global__ void rmsnorm_warps(const float* x, const float* w, float* y, int rows, int k,
                                         float eps) {
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += static_cast<long long>(row) * k;
  y += static_cast<long long>(row) * k;
  scale(x, w, y, k, eps, join_lanes(squares(x, k, lane, 32)), lane, 32);
}
