// The k most likely experts of each token and their weights, a block a token, with CUB.
#include <cub/cub.cuh>

template <int TPB>
__launch_bounds__(TPB) __global__
    void moe_topk(const float *logits, float *weights, int *indices, const int num_experts,
                  const int k) {
  using Pair = cub::KeyValuePair<int, float>;
  using BlockReduce = cub::BlockReduce<Pair, TPB>;
  using BlockSum = cub::BlockReduce<float, TPB>;
  __shared__ typename BlockReduce::TempStorage pair_storage;
  __shared__ typename BlockSum::TempStorage sum_storage;
  __shared__ float top, total;
  cub::ArgMax arg_max;

  const int row = blockIdx.x * num_experts;
  for (int i = 0; i < k; ++i) {
    Pair best;
    best.key = num_experts;
    best.value = -INFINITY;
    for (int expert = threadIdx.x; expert < num_experts; expert += TPB) {
      bool taken = false;
      for (int before = 0; before < i; ++before) taken |= indices[blockIdx.x * k + before] == expert;
      if (taken) continue;
      Pair mine;
      mine.key = expert;
      mine.value = logits[row + expert];
      best = arg_max(mine, best);
    }
    const Pair result = BlockReduce(pair_storage).Reduce(best, arg_max);
    if (threadIdx.x == 0) {
      if (i == 0) top = result.value;
      weights[blockIdx.x * k + i] = expf(result.value - top);
      indices[blockIdx.x * k + i] = result.key;
    }
    __syncthreads();
  }
  float sum = 0.f;
  for (int expert = threadIdx.x; expert < num_experts; expert += TPB)
    sum += expf(logits[row + expert] - top);
  sum = BlockSum(sum_storage).Sum(sum);
  if (threadIdx.x == 0) total = sum;
  __syncthreads();
  for (int i = threadIdx.x; i < k; i += TPB) weights[blockIdx.x * k + i] /= total;
}
