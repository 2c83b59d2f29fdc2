// A router's choice on a GPU: each token's k best experts and their weights. An ordinary kernel; a
// block of 128 threads a token, which ranks every expert by counting those before it.
//   z [tokens, experts]; ids and weights [tokens, k], best first; a lower index wins a tie. A row
//   with a logit that is not finite gets ids -1, weights NaN. Shared memory: experts + 2 k words.

#ifdef __CUDACC__
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif  // a compiler for another machine brings this function itself

__device__ inline float exponential(float x) { return exp2_fast(__fmul_rn(x, 1.44269504f)); }

extern "C" __global__ void __launch_bounds__(128)
    topk(const float* z, int* ids, float* weights, int experts, int k, int softmax,
         int renormalise, float scale) {
  extern __shared__ __align__(16) char shared[];
  float* row = reinterpret_cast<float*>(shared);        // [experts]
  int* best = reinterpret_cast<int*>(row + experts);    // [k]
  float* scores = reinterpret_cast<float*>(best + k);   // [k]
  const int thread = threadIdx.x, lane = thread % 32;
  z += (long long)blockIdx.x * experts;
  ids += (long long)blockIdx.x * k;
  weights += (long long)blockIdx.x * k;

  bool broken = false;
  for (int e = thread; e < experts; e += 128) {
    row[e] = z[e];
    broken |= __fadd_rn(row[e], -row[e]) != 0.0f;
  }
  if (__syncthreads_or(broken)) {
    for (int i = thread; i < k; i += 128) {
      ids[i] = -1;
      weights[i] = __uint_as_float(0x7fc00000);
    }
    return;
  }
  for (int e = thread; e < experts; e += 128) {
    int rank = 0;
    for (int other = 0; other < experts; other++)
      rank += row[other] > row[e] || (row[other] == row[e] && other < e);
    if (rank < k) best[rank] = e;
  }
  __syncthreads();

  const float highest = row[best[0]];
  float total = 0.0f;  // each lane's, then all lanes'
  for (int e = lane; e < experts; e += 32)
    total = __fadd_rn(total, exponential(__fadd_rn(row[e], -highest)));
  for (int mask = 16; mask; mask /= 2) total = __fadd_rn(total, __shfl_xor_sync(~0u, total, mask));
  for (int i = thread; i < k; i += 128) {
    const float x = row[best[i]];
    scores[i] = softmax ? __fdiv_rn(exponential(__fadd_rn(x, -highest)), total)
                        : __fdiv_rn(1.0f, __fadd_rn(1.0f, exponential(-x)));
  }
  __syncthreads();
  float chosen = 0.0f;
  for (int i = 0; i < k; i++) chosen = __fadd_rn(chosen, scores[i]);
  for (int i = thread; i < k; i += 128) {
    ids[i] = best[i];
    weights[i] = __fmul_rn(renormalise ? __fdiv_rn(scores[i], chosen) : scores[i], scale);
  }
}
