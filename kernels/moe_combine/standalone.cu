// Adds a token's weighted experts to its residual row on a GPU, and may norm the row then. Ordinary
// kernels; a block of 256 threads a token, whose vectors of 4 columns go to the threads in turn.
//   weights [tokens, top], y [tokens, top, n], x [tokens, n]; n a multiple of 4
//   more [tokens, n]: added to x before, or null
//   out [tokens, n]: where the sum goes; null: to x
//   w [n], h [tokens, n]: h = sum / sqrt(mean sum^2 + eps) * w; `centre`: the sum less its mean

// to [n] = x [n] (+ more [n]) + sum over c of weights[c] y[c]; y [top, n]
__device__ inline void add_experts(const float* weights, const float* y, const float* x,
                                   const float* more, float* to, int n, int top) {
  for (int i = threadIdx.x * 4; i < n; i += 256 * 4) {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int c = 0; c < top; c++) {  // best first
      const float4 its = *reinterpret_cast<const float4*>(y + (long long)c * n + i);
      sum.x = __fmaf_rn(weights[c], its.x, sum.x);
      sum.y = __fmaf_rn(weights[c], its.y, sum.y);
      sum.z = __fmaf_rn(weights[c], its.z, sum.z);
      sum.w = __fmaf_rn(weights[c], its.w, sum.w);
    }
    float4 old = *reinterpret_cast<const float4*>(x + i);
    if (more) {
      const float4 first = *reinterpret_cast<const float4*>(more + i);
      old = {__fadd_rn(old.x, first.x), __fadd_rn(old.y, first.y), __fadd_rn(old.z, first.z),
             __fadd_rn(old.w, first.w)};
    }
    *reinterpret_cast<float4*>(to + i) = {__fadd_rn(old.x, sum.x), __fadd_rn(old.y, sum.y),
                                          __fadd_rn(old.z, sum.z), __fadd_rn(old.w, sum.w)};
  }
}

extern "C" __global__ void __launch_bounds__(256)
    moe_combine(const float* weights, const float* y, float* x, const float* more, float* out, int n,
                int top) {
  const long long token = blockIdx.x;
  if (more) more += token * n;
  float* to = (out ? out : x) + token * n;
  add_experts(weights + token * top, y + token * top * n, x + token * n, more, to, n, top);
}

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

// of x [n] less both parts of its mean, or of the squares of that
__device__ inline float mean_of(const float* x, int n, float mean, float rest, bool square,
                                float* sums) {
  float sum = 0.0f;
  for (int i = threadIdx.x * 4; i < n; i += 256 * 4)
    for (int j = i; j < i + 4; j++) {
      const float centred = __fadd_rn(__fadd_rn(x[j], -mean), -rest);
      sum = square ? __fmaf_rn(centred, centred, sum) : __fadd_rn(sum, centred);
    }
  return __fdiv_rn(join(sum, sums), static_cast<float>(n));
}

extern "C" __global__ void __launch_bounds__(256)
    moe_combine_norm(const float* weights, const float* y, float* x, const float* more, float* out,
                     const float* w, float* h, int n, int top, int centre, float eps) {
  extern __shared__ __align__(16) char shared[];
  float* sums = reinterpret_cast<float*>(shared);  // [8] of the warps
  const long long token = blockIdx.x;
  x += token * n;
  h += token * n;
  if (more) more += token * n;
  float* to = out ? out + token * n : x;  // a thread reads its own
  add_experts(weights + token * top, y + token * top * n, x, more, to, n, top);
  const float mean = centre ? mean_of(to, n, 0.0f, 0.0f, false, sums) : 0.0f;
  const float rest = centre ? mean_of(to, n, mean, 0.0f, false, sums) : 0.0f;  // of rounding
  const float variance = mean_of(to, n, mean, rest, true, sums);
  const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, eps)));
  for (int i = threadIdx.x * 4; i < n; i += 256 * 4)
    for (int j = i; j < i + 4; j++) {
      const float centred = __fadd_rn(__fadd_rn(to[j], -mean), -rest);
      h[j] = __fmul_rn(__fmul_rn(centred, r), w[j]);
    }
}
