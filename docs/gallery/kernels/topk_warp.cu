// The k most likely experts of each token and their weights: a warp a token, by shuffles alone.
#define FULL_MASK 0xffffffff

__global__ void topk_softmax(const float *logits, float *weights, int *indices, int tokens,
                             int num_experts, int k) {
  const int token = (blockIdx.x * blockDim.x + threadIdx.x) / warpSize;
  const int lane = threadIdx.x % warpSize;
  if (token >= tokens) return;
  logits += token * num_experts;

  float top = 0.f, total = 0.f;
  unsigned long long taken_low = 0, taken_high = 0;
  for (int i = 0; i < k; ++i) {
    float best = -INFINITY;
    int where = num_experts;
    for (int e = lane; e < num_experts; e += warpSize) {
      const bool taken = ((e < 64 ? taken_low : taken_high) >> (e & 63)) & 1;
      if (!taken && logits[e] > best) best = logits[e], where = e;
    }
    for (int offset = warpSize / 2; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(FULL_MASK, best, offset);
      const int at = __shfl_xor_sync(FULL_MASK, where, offset);
      if (other > best || (other == best && at < where)) best = other, where = at;
    }
    if (where < 64)
      taken_low |= 1ull << where;
    else
      taken_high |= 1ull << (where & 63);
    if (i == 0) {
      top = best;
      for (int e = lane; e < num_experts; e += warpSize) total += expf(logits[e] - top);
      for (int offset = warpSize / 2; offset > 0; offset /= 2)
        total += __shfl_xor_sync(FULL_MASK, total, offset);
    }
    if (lane == 0) {
      weights[token * k + i] = expf(best - top) / total;
      indices[token * k + i] = where;
    }
  }
}
