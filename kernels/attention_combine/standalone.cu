// Joins the splits of paged attention on a GPU, a warp a head of a token. An ordinary kernel.
//   partial [tokens, splits, heads, head_dim + 16] float32: sums, m, l; rows [tokens, 2] int32
//   (sequence, position); y [tokens, heads, head_dim] float32

const int SPLIT = 256;  // keys
const float LOG2_E = 1.44269504f;

#ifdef __CUDACC__
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif  // a compiler for another machine brings this function itself

extern "C" __global__ void attention_combine(const float* partial, const int* rows, float* y,
                                             int tokens, int heads, int head_dim, int splits,
                                             int window) {
  const int place = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int token = place / heads, head = place % heads;
  if (token >= tokens) return;
  const int position = rows[2 * token + 1];
  const int oldest = window > 0 && position >= window ? position - window + 1 : 0;
  const int first = oldest / SPLIT, count = position / SPLIT + 1 - first;
  const long long row = head_dim + 16, step = heads * row;
  const float* x = partial + (static_cast<long long>(token) * splits + first) * step + head * row;

  float m = __uint_as_float(0xff800000u), l = 0.0f;
  for (int s = lane; s < count; s += 32) m = fmaxf(m, x[s * step + head_dim]);
  for (int mask = 16; mask; mask /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, mask));
  for (int s = lane; s < count; s += 32) {
    const float factor = exp2_fast(__fmul_rn(__fadd_rn(x[s * step + head_dim], -m), LOG2_E));
    l = __fmaf_rn(x[s * step + head_dim + 1], factor, l);
  }
  for (int mask = 16; mask; mask /= 2) l = __fadd_rn(l, __shfl_xor_sync(~0u, l, mask));
  for (int d = lane; d < head_dim; d += 32) {
    float sum = 0.0f;
    for (int s = 0; s < count; s++) {
      const float factor = exp2_fast(__fmul_rn(__fadd_rn(x[s * step + head_dim], -m), LOG2_E));
      sum = __fmaf_rn(x[s * step + d], factor, sum);
    }
    y[(static_cast<long long>(token) * heads + head) * head_dim + d] = __fdiv_rn(sum, l);
  }
}
