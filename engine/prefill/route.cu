// Which experts a chunk's tokens take, and the pairs of both in order of expert. Ordinary kernels.
//   z [tokens, experts] logits; ids and weights [tokens, top], the best first; a lower index wins a tie
//   token [pairs] of each pair, in order of expert; place [pairs] where pair token * top + choice
//   stands in that order; ends [experts] where each expert's pairs end

// Distinct, and ordered as the logits; what is not a number has a place too.
__device__ inline long long ranked(float x, int index, int experts) {
  int bits = __float_as_int(__fadd_rn(x, 0.0f));  // no negative zero
  bits ^= (bits >> 31) & 0x7fffffff;
  return (long long)bits * 4294967296LL + (experts - 1 - index);
}

// A warp a token.
extern "C" __global__ void __launch_bounds__(128)
    choose(const float* z, int* ids, float* weights, int tokens, int experts, int top, int softmax,
           int renormalise, float scale) {
  const int lane = threadIdx.x % 32, token = blockIdx.x * 4 + threadIdx.x / 32;
  if (token >= tokens) return;
  z += (long long)token * experts;
  ids += (long long)token * top;
  weights += (long long)token * top;

  long long before = 0x7fffffffffffffffLL;  // the key of the last one chosen
  float highest = 0.0f, total = 0.0f, chosen = 0.0f;
  for (int i = 0; i < top; i++) {
    long long best = -0x7fffffffffffffffLL - 1;
    for (int e = lane; e < experts; e += 32) {
      const long long key = ranked(z[e], e, experts);
      if (key < before && key > best) best = key;
    }
    for (int mask = 16; mask; mask /= 2) {
      const long long other = __shfl_xor_sync(~0u, best, mask);
      if (other > best) best = other;
    }
    before = best;
    const int id = experts - 1 - int(best & 0xffffffffLL);
    const float x = z[id];
    if (i == 0 && softmax) {
      highest = x;
      for (int e = lane; e < experts; e += 32) total += expf(z[e] - highest);
      for (int mask = 16; mask; mask /= 2) total += __shfl_xor_sync(~0u, total, mask);
    }
    const float score = softmax ? expf(x - highest) / total : 1.0f / (1.0f + expf(-x));
    chosen += score;
    if (lane == 0) {
      ids[i] = id;
      weights[i] = score * scale;
    }
  }
  if (renormalise && lane == 0)
    for (int i = 0; i < top; i++) weights[i] /= chosen;
}

// A block an expert, which looks at all pairs twice: how many go before its own, and which are its
// own. Shared memory: two words a warp.
extern "C" __global__ void __launch_bounds__(256)
    group(const int* ids, long long* token, long long* place, int* ends, int pairs, int top) {
  extern __shared__ __align__(16) char shared[];
  const int expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warps = blockDim.x / 32;
  int* lower = reinterpret_cast<int*>(shared);  // [warps] pairs of lower experts
  int* own = lower + warps;                     // [warps]

  int less = 0, mine = 0;
  for (int p = threadIdx.x; p < pairs; p += blockDim.x) {
    less += ids[p] < expert;
    mine += ids[p] == expert;
  }
  for (int mask = 16; mask; mask /= 2) {
    less += __shfl_xor_sync(~0u, less, mask);
    mine += __shfl_xor_sync(~0u, mine, mask);
  }
  if (lane == 0) {
    lower[warp] = less;
    own[warp] = mine;
  }
  __syncthreads();
  int at = 0, count = 0;
  for (int w = 0; w < warps; w++) {
    at += lower[w];
    count += own[w];
  }
  if (threadIdx.x == 0) ends[expert] = at + count;
  for (int first = 0; first < pairs && count > 0; first += blockDim.x) {
    const int p = first + threadIdx.x;
    const bool hit = p < pairs && ids[p] == expert;
    const unsigned hits = __ballot_sync(~0u, hit);
    __syncthreads();  // the counts have been read
    if (lane == 0) own[warp] = __popc(hits);
    __syncthreads();
    int here = at + __popc(hits & ((1u << lane) - 1));
    for (int w = 0; w < warps; w++) {
      if (w < warp) here += own[w];
      at += own[w];
    }
    if (hit) {
      token[here] = p / top;
      place[p] = here;
    }
  }
}
