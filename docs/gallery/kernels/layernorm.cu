// LayerNorm of each row: warps reduce by shuffles, their results meet in shared memory.
namespace ln {

struct MeanVar {
  float mean, m2, count;
};

__inline__ __device__ MeanVar combine(MeanVar a, MeanVar b) {
  if (b.count == 0.f) return a;
  const float count = a.count + b.count;
  const float delta = b.mean - a.mean;
  return {a.mean + delta * (b.count / count), a.m2 + b.m2 + delta * delta * a.count * b.count / count,
          count};
}

__inline__ __device__ MeanVar warpCombine(MeanVar v) {
  for (int mask = 16; mask > 0; mask /= 2) {
    MeanVar other;
    other.mean = __shfl_xor_sync(0xffffffff, v.mean, mask);
    other.m2 = __shfl_xor_sync(0xffffffff, v.m2, mask);
    other.count = __shfl_xor_sync(0xffffffff, v.count, mask);
    v = combine(v, other);
  }
  return v;
}

}  // namespace ln

template <int WARPS>
__global__ void layernorm_kernel(const float *input, const float *gamma, const float *beta,
                                 float *output, const int hidden_size, const float epsilon) {
  __shared__ float s_means[WARPS], s_m2s[WARPS], s_counts[WARPS];
  __shared__ float s_mean, s_rstd;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float *x = input + blockIdx.x * hidden_size;

  ln::MeanVar v = {0.f, 0.f, 0.f};
  for (int i = threadIdx.x; i < hidden_size; i += WARPS * 32) v = ln::combine(v, {x[i], 0.f, 1.f});
  v = ln::warpCombine(v);
  if (lane == 0) {
    s_means[warp] = v.mean;
    s_m2s[warp] = v.m2;
    s_counts[warp] = v.count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < WARPS; ++w) v = ln::combine(v, {s_means[w], s_m2s[w], s_counts[w]});
    s_mean = v.mean;
    s_rstd = rsqrtf(v.m2 / v.count + epsilon);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < hidden_size; i += WARPS * 32)
    output[blockIdx.x * hidden_size + i] = (x[i] - s_mean) * s_rstd * gamma[i] + beta[i];
}
