// Joins the splits of paged attention on a GPU. An ordinary kernel; a block 32 columns of a head of
// a token: all its threads bring the sums to shared memory, one warp joins them in order.
//   partial [tokens, splits, heads, head_dim + 16] float32: sums, m, l, split s at s % splits; rows
//   [tokens, 2] int32 (sequence, position); y [tokens, heads, head_dim] float32

const int SPLIT = 512;  // keys
const int COLUMNS = 32;
const int CHUNK = 1024;  // splits that are in shared memory at a time
const int BATCH = 16;    // of them, loaded together
const float LOG2_E = 1.44269504f;

#ifdef __CUDACC__
__device__ inline void copy16(void* to, const void* from) {  // global to shared, in the background
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups>
__device__ inline void wait_copies() {  // until at most so many groups are under way
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif  // a compiler for another machine brings these functions itself

// 128 threads; shared memory for up to CHUNK splits [COLUMNS], and the factors of all of them.
extern "C" __global__ void __launch_bounds__(128, 8)
    attention_combine(const float* partial, const int* rows, float* y, int heads, int head_dim,
                      int splits, int window) {
  extern __shared__ __align__(128) char shared[];
  float* sums = reinterpret_cast<float*>(shared);
  float* factors = sums + (splits < CHUNK ? splits : CHUNK) * COLUMNS;  // first m, then e^(m - m')
  float* weights = factors + splits;                                    // l
  const int parts = (head_dim + COLUMNS - 1) / COLUMNS, lane = threadIdx.x % 32;
  const int column = blockIdx.x % parts * COLUMNS, head = blockIdx.x / parts % heads;
  const int token = blockIdx.x / (parts * heads), position = rows[2 * token + 1];
  const int oldest = window > 0 && position >= window ? position - window + 1 : 0;
  const int first = oldest / SPLIT, count = position / SPLIT + 1 - first;
  const int row = head_dim + 16, step = heads * row;
  const float* x = partial + static_cast<long long>(token) * splits * step + head * row;
  const int begins = first % splits;  // the place of the first
  auto place = [&](int s) {           // those behind the last place are at 0 and on
    const int at = begins + s;
    return static_cast<long long>(at < splits ? at : at - splits) * step;
  };

  auto fetch = [&](int begin) {
    const int columns = head_dim - column < COLUMNS ? head_dim - column : COLUMNS;
    const int end = count - begin < CHUNK ? count - begin : CHUNK;
    const int at = threadIdx.x % (COLUMNS / 4) * 4;
    for (int s = threadIdx.x / (COLUMNS / 4); s < end; s += 128 / (COLUMNS / 4))
      if (at < columns) copy16(sums + s * COLUMNS + at, x + place(begin + s) + column + at);
    end_copies();
  };
#pragma unroll 4
  for (int s = threadIdx.x; s < count; s += 128) {
    factors[s] = x[place(s) + head_dim];
    weights[s] = x[place(s) + head_dim + 1];
  }
  fetch(0);
  __syncthreads();
  float m = __uint_as_float(0xff800000u), l = 0.0f, sum = 0.0f;
  if (threadIdx.x < 32) {  // the warp that will join the sums needs the factors
#pragma unroll 4
    for (int s = lane; s < count; s += 32) m = fmaxf(m, factors[s]);
    for (int mask = 16; mask; mask /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, mask));
#pragma unroll 4
    for (int s = lane; s < count; s += 32) {
      factors[s] = exp2_fast(__fmul_rn(__fadd_rn(factors[s], -m), LOG2_E));
      l = __fmaf_rn(weights[s], factors[s], l);
    }
    for (int mask = 16; mask; mask /= 2) l = __fadd_rn(l, __shfl_xor_sync(~0u, l, mask));
  }
  for (int begin = 0; begin < count; begin += CHUNK) {
    wait_copies<0>();
    __syncthreads();
    const int end = count - begin < CHUNK ? count - begin : CHUNK;
    if (threadIdx.x < 32) {
      int s = 0;
      for (; s + BATCH <= end; s += BATCH) {  // loads first: only the sums wait for each other
        float part[BATCH];
        float4 factor[BATCH / 4];
#pragma unroll
        for (int i = 0; i < BATCH; i++) part[i] = sums[(s + i) * COLUMNS + lane];
#pragma unroll
        for (int i = 0; i < BATCH / 4; i++)
          factor[i] = *reinterpret_cast<const float4*>(factors + begin + s + i * 4);
#pragma unroll
        for (int i = 0; i < BATCH / 4; i++) {
          sum = __fmaf_rn(part[4 * i], factor[i].x, sum);
          sum = __fmaf_rn(part[4 * i + 1], factor[i].y, sum);
          sum = __fmaf_rn(part[4 * i + 2], factor[i].z, sum);
          sum = __fmaf_rn(part[4 * i + 3], factor[i].w, sum);
        }
      }
#pragma unroll 4
      for (; s < end; s++) sum = __fmaf_rn(sums[s * COLUMNS + lane], factors[begin + s], sum);
    }
    __syncthreads();
    if (begin + CHUNK < count) fetch(begin + CHUNK);
  }
  if (threadIdx.x < 32 && column + lane < head_dim)
    y[(static_cast<long long>(token) * heads + head) * head_dim + column + lane] =
        __fdiv_rn(sum, l);
}
