// LayerNorm on a GPU: y = (x - mean) / sqrt(variance + eps) * w. An ordinary kernel: a block of
// 256 threads a row.
//   x [rows, k] float32, w [k] float32, y [rows, k] float32, may be x; k a multiple of 4

// of all threads: each warp's lanes in halves, then the warps in order
__device__ inline float join(float x, float* sums) {
  for (int mask = 16; mask; mask /= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, mask));
  __syncthreads();  // the sums before these have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = sums[0];
  for (int warp = 1; warp < 8; warp++) sum = __fadd_rn(sum, sums[warp]);
  return sum;
}

extern "C" __global__ void __launch_bounds__(256)
    layernorm(const float* x, const float* w, float* y, int k, float eps) {
  extern __shared__ __align__(16) char shared[];
  float* sums = reinterpret_cast<float*>(shared);  // [8] of the warps
  x += static_cast<long long>(blockIdx.x) * k;
  y += static_cast<long long>(blockIdx.x) * k;
  const int first = threadIdx.x * 4, next = 256 * 4;  // vectors of 4 go to the threads in turn
  const float columns = static_cast<float>(k);

  float sum = 0.0f;
  for (int i = first; i < k; i += next)
    for (int j = i; j < i + 4; j++) sum = __fadd_rn(sum, x[j]);
  const float mean = __fdiv_rn(join(sum, sums), columns);
  sum = 0.0f;
  for (int i = first; i < k; i += next)
    for (int j = i; j < i + 4; j++) sum = __fadd_rn(sum, __fadd_rn(x[j], -mean));
  const float rest = __fdiv_rn(join(sum, sums), columns);  // what rounding left of the mean
  sum = 0.0f;
  for (int i = first; i < k; i += next)
    for (int j = i; j < i + 4; j++) {
      const float centred = __fadd_rn(__fadd_rn(x[j], -mean), -rest);
      sum = __fmaf_rn(centred, centred, sum);
    }
  const float variance = __fdiv_rn(join(sum, sums), columns);
  const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, eps)));
  for (int i = first; i < k; i += next)
    for (int j = i; j < i + 4; j++) {
      const float centred = __fadd_rn(__fadd_rn(x[j], -mean), -rest);
      y[j] = __fmul_rn(__fmul_rn(centred, r), w[j]);
    }
}
