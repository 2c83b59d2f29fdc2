// A router's choice on a GPU: each token's k best experts and their weights; and, if they are asked
// for, the (token, choice) pairs by expert. Ordinary kernels, which rank every expert by counting
// those before it.
//   z [tokens, experts]; ids and weights [tokens, k], best first; a lower index wins a tie. A row
//   with a logit that is not finite gets ids -1, weights NaN.
//   pairs [tokens * k] places of choices, by expert, then by token; slots [slot_count + 1, 2] each
//   expert with the place of its first pair, then (-1, number of pairs).
// `topk`: a block of 128 threads a token, experts + 2 k words of shared memory. `topk_group`: one
// block of 256 threads, experts + 2 k + 2 tokens * k words.

#ifdef __CUDACC__
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif  // a compiler for another machine brings this function itself

__device__ inline float exponential(float x) { return exp2_fast(__fmul_rn(x, 1.44269504f)); }

// One token's z [experts], by a block; ids and weights [k].
__device__ inline void choose(const float* z, int* ids, float* weights, int experts, int k,
                              int softmax, int renormalise, float scale, char* shared) {
  float* row = reinterpret_cast<float*>(shared);        // [experts]
  int* best = reinterpret_cast<int*>(row + experts);    // [k]
  float* scores = reinterpret_cast<float*>(best + k);   // [k]
  const int thread = threadIdx.x, threads = blockDim.x, lane = thread % 32;

  bool broken = false;
  for (int e = thread; e < experts; e += threads) {
    row[e] = z[e];
    broken |= __fadd_rn(row[e], -row[e]) != 0.0f;
  }
  if (__syncthreads_or(broken)) {
    for (int i = thread; i < k; i += threads) {
      ids[i] = -1;
      weights[i] = __uint_as_float(0x7fc00000);
    }
    return;
  }
  for (int e = thread; e < experts; e += threads) {
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
  for (int i = thread; i < k; i += threads) {
    const float x = row[best[i]];
    scores[i] = softmax ? __fdiv_rn(exponential(__fadd_rn(x, -highest)), total)
                        : __fdiv_rn(1.0f, __fadd_rn(1.0f, exponential(-x)));
  }
  __syncthreads();
  float chosen = 0.0f;
  for (int i = 0; i < k; i++) chosen = __fadd_rn(chosen, scores[i]);
  for (int i = thread; i < k; i += threads) {
    ids[i] = best[i];
    weights[i] = __fmul_rn(renormalise ? __fdiv_rn(scores[i], chosen) : scores[i], scale);
  }
}

extern "C" __global__ void __launch_bounds__(128)
    topk(const float* z, int* ids, float* weights, int experts, int k, int softmax,
         int renormalise, float scale) {
  extern __shared__ __align__(16) char shared[];
  const long long token = blockIdx.x;
  choose(z + token * experts, ids + token * k, weights + token * k, experts, k, softmax,
         renormalise, scale, shared);
}

extern "C" __global__ void __launch_bounds__(256)
    topk_group(const float* z, int* ids, float* weights, int experts, int k, int softmax,
               int renormalise, float scale, int* pairs, int* slots, int tokens, int slot_count) {
  extern __shared__ __align__(16) char shared[];
  const int thread = threadIdx.x, choices = tokens * k;
  int* chosen = reinterpret_cast<int*>(shared) + experts + 2 * k;  // [choices]
  int* leads = chosen + choices;                                   // [choices] 1: its expert's first
  for (int token = 0; token < tokens; token++) {
    choose(z + token * experts, ids + token * k, weights + token * k, experts, k, softmax,
           renormalise, scale, shared);
    __syncthreads();  // the ids are there, and the row has been read
  }
  for (int p = thread; p < choices; p += 256) chosen[p] = ids[p];
  __syncthreads();
  for (int p = thread; p < choices; p += 256) {
    bool lead = chosen[p] >= 0;
    for (int q = 0; q < p; q++) lead &= chosen[q] != chosen[p];
    leads[p] = lead;
  }
  __syncthreads();
  int used = 0, live = 0;
  for (int q = 0; q < choices; q++) {
    used += leads[q];
    live += chosen[q] >= 0;
  }
  for (int p = thread; p < choices; p += 256) {
    if (chosen[p] < 0) continue;
    int place = 0, slot = 0;  // pairs and experts before this one
    for (int q = 0; q < choices; q++) {
      const bool smaller = chosen[q] >= 0 && chosen[q] < chosen[p];
      place += smaller || (chosen[q] == chosen[p] && q < p);
      slot += smaller && leads[q];
    }
    pairs[place] = p;
    if (leads[p]) {
      slots[2 * slot] = chosen[p];
      slots[2 * slot + 1] = place;
    }
  }
  for (int slot = used + thread; slot <= slot_count; slot += 256) {
    slots[2 * slot] = -1;
    slots[2 * slot + 1] = live;
  }
}
