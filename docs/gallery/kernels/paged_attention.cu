// Decode attention over a paged cache. v1: a block a (head, sequence). v2: the sequence is cut into
// partitions, whose results a second kernel joins; a partition behind the end returns as one block.
#include <float.h>
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define DIVIDE_ROUND_UP(a, b) (((a) + (b)-1) / (b))

namespace attn {

template <int NUM_WARPS>
__device__ inline float block_sum(float *red_smem, float sum) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int mask = 16; mask >= 1; mask /= 2) sum += __shfl_xor_sync(uint32_t(-1), sum, mask);
  if (lane == 0) red_smem[warp] = sum;
  __syncthreads();
  sum = 0.f;
  for (int w = 0; w < NUM_WARPS; ++w) sum += red_smem[w];
  __syncthreads();
  return sum;
}

template <int NUM_WARPS>
__device__ inline float block_max(float *red_smem, float val) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int mask = 16; mask >= 1; mask /= 2)
    val = fmaxf(val, __shfl_xor_sync(uint32_t(-1), val, mask));
  if (lane == 0) red_smem[warp] = val;
  __syncthreads();
  val = red_smem[0];
  for (int w = 1; w < NUM_WARPS; ++w) val = fmaxf(val, red_smem[w]);
  __syncthreads();
  return val;
}

// The attention of one head of one sequence over its positions [start, end).
template <int HEAD_SIZE, int BLOCK_SIZE, int NUM_THREADS>
__device__ void attend(float *out, float *exp_sum, float *max_logit, const float *q,
                       const float *k_cache, const float *v_cache, const int *block_table,
                       int num_kv_heads, int kv_head, float scale, int start, int end) {
  extern __shared__ char shared_mem[];
  float *logits = reinterpret_cast<float *>(shared_mem);
  __shared__ float red_smem[NUM_THREADS / 32];
  __shared__ float q_smem[HEAD_SIZE];
  for (int i = threadIdx.x; i < HEAD_SIZE; i += NUM_THREADS) q_smem[i] = q[i];
  __syncthreads();

  float qk_max = -FLT_MAX;
  for (int token = start + threadIdx.x; token < end; token += NUM_THREADS) {
    const int page = block_table[token / BLOCK_SIZE];
    const float *k = k_cache + ((page * num_kv_heads + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE) * HEAD_SIZE;
    float qk = 0.f;
#pragma unroll
    for (int i = 0; i < HEAD_SIZE; ++i) qk += q_smem[i] * k[i];
    qk *= scale;
    logits[token - start] = qk;
    qk_max = fmaxf(qk_max, qk);
  }
  qk_max = block_max<NUM_THREADS / 32>(red_smem, qk_max);

  float sum = 0.f;
  for (int i = threadIdx.x; i < end - start; i += NUM_THREADS) {
    logits[i] = __expf(logits[i] - qk_max);
    sum += logits[i];
  }
  sum = block_sum<NUM_THREADS / 32>(red_smem, sum);
  const float inv_sum = __fdividef(1.f, sum + 1e-6f);

  for (int d = threadIdx.x; d < HEAD_SIZE; d += NUM_THREADS) {
    float acc = 0.f;
    for (int i = 0; i < end - start; ++i) {
      const int page = block_table[(start + i) / BLOCK_SIZE];
      acc += logits[i] * inv_sum *
             v_cache[((page * num_kv_heads + kv_head) * BLOCK_SIZE + (start + i) % BLOCK_SIZE) * HEAD_SIZE + d];
    }
    out[d] = acc;
  }
  if (threadIdx.x == 0 && exp_sum != nullptr) {
    *exp_sum = sum;
    *max_logit = qk_max;
  }
}

}  // namespace attn

template <int HEAD_SIZE, int BLOCK_SIZE, int NUM_THREADS>
__global__ void paged_attention_v1(float *out, const float *q, const float *k_cache,
                                   const float *v_cache, const int *block_tables,
                                   const int *seq_lens, const int num_heads,
                                   const int num_kv_heads, const int max_blocks, const float scale) {
  const int head = blockIdx.x, seq = blockIdx.y;
  const int seq_len = seq_lens[seq];
  if (seq_len == 0) return;  // the whole block
  attn::attend<HEAD_SIZE, BLOCK_SIZE, NUM_THREADS>(
      out + (seq * num_heads + head) * HEAD_SIZE, nullptr, nullptr,
      q + (seq * num_heads + head) * HEAD_SIZE, k_cache, v_cache, block_tables + seq * max_blocks,
      num_kv_heads, head / (num_heads / num_kv_heads), scale, 0, seq_len);
}

template <int HEAD_SIZE, int BLOCK_SIZE, int NUM_THREADS, int PARTITION_SIZE>
__global__ void paged_attention_v2(float *exp_sums, float *max_logits, float *tmp_out,
                                   const float *q, const float *k_cache, const float *v_cache,
                                   const int *block_tables, const int *seq_lens,
                                   const int num_kv_heads, const int max_blocks, const float scale) {
  const int head = blockIdx.x, num_heads = gridDim.x, seq = blockIdx.y;
  const int partition = blockIdx.z, max_partitions = gridDim.z;
  const int seq_len = seq_lens[seq];
  const int start = partition * PARTITION_SIZE;
  if (start >= seq_len) return;  // the whole block: nothing of this sequence is here
  const int place = (seq * num_heads + head) * max_partitions + partition;
  attn::attend<HEAD_SIZE, BLOCK_SIZE, NUM_THREADS>(
      tmp_out + place * HEAD_SIZE, exp_sums + place, max_logits + place,
      q + (seq * num_heads + head) * HEAD_SIZE, k_cache, v_cache, block_tables + seq * max_blocks,
      num_kv_heads, head / (num_heads / num_kv_heads), scale, start,
      MIN(start + PARTITION_SIZE, seq_len));
}

template <int HEAD_SIZE, int PARTITION_SIZE>
__global__ void paged_attention_v2_reduce(float *out, const float *exp_sums, const float *max_logits,
                                          const float *tmp_out, const int *seq_lens,
                                          const int max_partitions) {
  const int num_heads = gridDim.x, head = blockIdx.x, seq = blockIdx.y;
  const int num_partitions = DIVIDE_ROUND_UP(seq_lens[seq], PARTITION_SIZE);
  const int first = (seq * num_heads + head) * max_partitions;
  if (num_partitions == 0) return;
  float most = -FLT_MAX;
  for (int p = 0; p < num_partitions; ++p) most = MAX(most, max_logits[first + p]);
  float sum = 0.f;
  for (int p = 0; p < num_partitions; ++p)
    sum += exp_sums[first + p] * __expf(max_logits[first + p] - most);
  for (int d = threadIdx.x; d < HEAD_SIZE; d += blockDim.x) {
    float acc = 0.f;
    for (int p = 0; p < num_partitions; ++p)
      acc += tmp_out[(first + p) * HEAD_SIZE + d] * exp_sums[first + p] *
             __expf(max_logits[first + p] - most) / sum;
    out[(seq * num_heads + head) * HEAD_SIZE + d] = acc;
  }
}
