// Joins the splits of paged attention on a GPU. An ordinary kernel. A part is 32 columns of a head of
// a token. Up to FEW splits are joined by a warp alone, four parts a block; of more a block has one
// part: all its threads bring the sums to shared memory, one warp joins them. Split s, the first that
// the token sees being 0, goes to sum s % 16; these sums are joined in halves.
//   partial [tokens, splits, heads, head_dim + 16] float32: sums, m, l, split s at s % splits; rows
//   [tokens, 2] int32 (sequence, position); y [tokens, heads, head_dim] float32

const int SPLIT = 512;  // keys
const int COLUMNS = 32;
const int CHUNK = 1024;  // splits that are in shared memory at a time
const int BATCH = 16;    // of them, loaded together
const int FEW = 32;      // places of splits that a warp has in its registers
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

__device__ inline float power(float x) { return exp2_fast(__fmul_rn(x, LOG2_E)); }

// Divides numbers below 2^23: a few instructions, where / has twenty.
__device__ inline int divided(int n, int by, int& rest) {
  int quotient = static_cast<int>(__fdividef(static_cast<float>(n), static_cast<float>(by)));
  rest = n - quotient * by;  // the quotient may be one off
  if (rest < 0) quotient--, rest += by;
  if (rest >= by) quotient++, rest -= by;
  return quotient;
}

// The splits that a token sees: `count` from the `first` on, whose place is `begins`.
struct Seen {
  int count, begins;
  __device__ static Seen of(int position, int window, int splits) {
    if (window == 0) return {static_cast<int>(static_cast<unsigned>(position) / SPLIT) + 1, 0};
    const unsigned oldest = position >= window ? position - window + 1 : 0;
    const int first = oldest / SPLIT;
    Seen seen;
    divided(first, splits, seen.begins);
    seen.count = static_cast<unsigned>(position) / SPLIT - first + 1;
    return seen;
  }
};

const int SUMS = 16;

// sum i becomes what sum i + by was
__device__ inline void rotate(float (&sums)[SUMS], int by) {
#pragma unroll
  for (int step = 1; step < SUMS; step *= 2) {
    float moved[SUMS];
    for (int i = 0; i < SUMS; i++) moved[i] = sums[(i + step) % SUMS];
    for (int i = 0; i < SUMS; i++) sums[i] = by & step ? moved[i] : sums[i];
  }
}

__device__ inline float joined(float (&sums)[SUMS]) {
#pragma unroll
  for (int half = SUMS / 2; half; half /= 2)
    for (int i = 0; i < half; i++) sums[i] = __fadd_rn(sums[i], sums[i + half]);
  return sums[0];
}

// Of sums that lanes 0 to 15 have, and the others again.
__device__ inline float joined(float sum) {
  for (int mask = SUMS / 2; mask; mask /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, mask));
  return sum;
}

// A column of few splits; x: the column in place 0, ml: m and l there, a place every `step`. A lane
// has its column of all places, MOST or fewer, and of one m and l; all are asked for before it is
// known which of them the token sees.
template <int MOST>
__device__ inline float few(const float* x, const float* ml, int step, int splits,
                            const int* position, int window, bool mine) {
  const int lane = threadIdx.x % 32;
  float2 own = {0.0f, 0.0f};  // m, l
  float parts[MOST];
  if (lane < splits) own = *reinterpret_cast<const float2*>(ml + lane * step);
#pragma unroll
  for (int i = 0; i < MOST; i++, x += step)
    if (i < splits && mine) parts[i] = *x;
  const Seen seen = Seen::of(*position, window, splits);
  const int after = lane >= seen.begins ? lane - seen.begins : lane + splits - seen.begins;
  const bool live = lane < splits && after < seen.count;
  float top = live ? own.x : __uint_as_float(0xff800000u);
  for (int mask = 16; mask; mask /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
  const float factor = live ? power(__fadd_rn(own.x, -top)) : 0.0f;
  float l = 0.0f;
#pragma unroll
  for (int i = lane % SUMS; i < 32; i += SUMS) {  // in the splits' order
    const int place = seen.begins + i < splits ? seen.begins + i : seen.begins + i - splits;
    const float more = __shfl_sync(~0u, own.y, place & 31);
    const float weight = __shfl_sync(~0u, factor, place & 31);
    if (i < seen.count) l = __fmaf_rn(more, weight, l);
  }
  l = joined(l);
  float sums[SUMS] = {};
  auto add = [&](int low, int high) {  // place i to sum i % SUMS
    const unsigned count = high - low;
#pragma unroll
    for (int i = 0; i < MOST; i++) {
      const float weight = __shfl_sync(~0u, factor, i);
      if (i - low < count) sums[i % SUMS] = __fmaf_rn(parts[i], weight, sums[i % SUMS]);
    }
  };
  const int behind = seen.begins + seen.count, around = behind > splits ? splits : 0;
  add(seen.begins, around ? splits : behind);
  if (around) {  // place 0 continues behind the last
    rotate(sums, splits);
    add(0, behind - splits);
  }
  rotate(sums, seen.begins - around);
  return __fdiv_rn(joined(sums), l);
}

// A part of a block, or of a warp.
struct Part {
  int token, head, column;
  __device__ static Part of(int number, int heads, int head_dim) {
    const int parts = static_cast<unsigned>(head_dim + COLUMNS - 1) / COLUMNS;
    Part p;
    int rest;
    const int row = divided(number, parts, rest);
    p.token = divided(row, heads, p.head);
    p.column = rest * COLUMNS;
    return p;
  }
};

// 128 threads, a warp a part; at most FEW splits.
extern "C" __global__ void __launch_bounds__(128, 8)
    attention_combine_few(const float* partial, const int* rows, float* y, int tokens, int heads,
                          int head_dim, int splits, int window) {
  const int lane = threadIdx.x % 32;
  const Part p = Part::of(blockIdx.x * 4 + threadIdx.x / 32, heads, head_dim);
  if (p.token >= tokens) return;
  const int row = head_dim + 16, step = heads * row;
  const float* ml = partial + static_cast<long long>(p.token) * splits * step + p.head * row +
                    head_dim;
  const float* x = ml - head_dim + p.column + lane;
  const int* position = rows + 2 * p.token + 1;
  const bool mine = p.column + lane < head_dim;
  const float column = splits <= FEW / 2
                           ? few<FEW / 2>(x, ml, step, splits, position, window, mine)
                           : few<FEW>(x, ml, step, splits, position, window, mine);
  if (mine)
    y[(static_cast<long long>(p.token) * heads + p.head) * head_dim + p.column + lane] = column;
}

// 128 threads, a block a part; shared memory for up to CHUNK splits [COLUMNS], and the factors of all
// of them.
extern "C" __global__ void __launch_bounds__(128, 8)
    attention_combine(const float* partial, const int* rows, float* y, int heads, int head_dim,
                      int splits, int window) {
  extern __shared__ __align__(128) char shared[];
  float* staged = reinterpret_cast<float*>(shared);
  float* factors = staged + (splits < CHUNK ? splits : CHUNK) * COLUMNS;  // first m, then e^(m - m')
  float* weights = factors + splits;                                    // l
  const int lane = threadIdx.x % 32;
  const Part p = Part::of(blockIdx.x, heads, head_dim);
  const int row = head_dim + 16, step = heads * row, column = p.column;
  const float* x = partial + static_cast<long long>(p.token) * splits * step + p.head * row;
  const Seen seen = Seen::of(rows[2 * p.token + 1], window, splits);
  const int count = seen.count;
  auto place = [&](int s) {  // those behind the last place are at 0 and on
    const int at = seen.begins + s;
    return static_cast<long long>(at < splits ? at : at - splits) * step;
  };

  auto fetch = [&](int begin) {
    const int columns = head_dim - column < COLUMNS ? head_dim - column : COLUMNS;
    const int end = count - begin < CHUNK ? count - begin : CHUNK;
    const int at = threadIdx.x % (COLUMNS / 4) * 4;
    for (int s = threadIdx.x / (COLUMNS / 4); s < end; s += 128 / (COLUMNS / 4))
      if (at < columns) copy16(staged + s * COLUMNS + at, x + place(begin + s) + column + at);
    end_copies();
  };
#pragma unroll 4
  for (int s = threadIdx.x; s < count; s += 128) {
    const float2 ml = *reinterpret_cast<const float2*>(x + place(s) + head_dim);
    factors[s] = ml.x;
    weights[s] = ml.y;
  }
  fetch(0);
  __syncthreads();
  float m = __uint_as_float(0xff800000u), l = 0.0f, sums[SUMS] = {};
  if (threadIdx.x < 32) {  // the warp that will join the staged needs the factors
#pragma unroll 4
    for (int s = lane; s < count; s += 32) m = fmaxf(m, factors[s]);
    for (int mask = 16; mask; mask /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, mask));
#pragma unroll 4
    for (int s = lane; s < count; s += 32) factors[s] = power(__fadd_rn(factors[s], -m));
    __syncwarp();
#pragma unroll 4
    for (int s = lane % SUMS; s < count; s += SUMS) l = __fmaf_rn(weights[s], factors[s], l);
    l = joined(l);
  }
  for (int begin = 0; begin < count; begin += CHUNK) {
    wait_copies<0>();
    __syncthreads();
    const int end = count - begin < CHUNK ? count - begin : CHUNK;
    if (threadIdx.x < 32) {
      int s = 0;
      for (; s + BATCH <= end; s += BATCH) {  // loads first: only the staged wait for each other
        float part[BATCH];
        float4 factor[BATCH / 4];
#pragma unroll
        for (int i = 0; i < BATCH; i++) part[i] = staged[(s + i) * COLUMNS + lane];
#pragma unroll
        for (int i = 0; i < BATCH / 4; i++)
          factor[i] = *reinterpret_cast<const float4*>(factors + begin + s + i * 4);
#pragma unroll
        for (int i = 0; i < BATCH / 4; i++) {
          const int at = 4 * i % SUMS;
          sums[at] = __fmaf_rn(part[4 * i], factor[i].x, sums[at]);
          sums[at + 1] = __fmaf_rn(part[4 * i + 1], factor[i].y, sums[at + 1]);
          sums[at + 2] = __fmaf_rn(part[4 * i + 2], factor[i].z, sums[at + 2]);
          sums[at + 3] = __fmaf_rn(part[4 * i + 3], factor[i].w, sums[at + 3]);
        }
      }
      for (; s < end; s += SUMS)
#pragma unroll
        for (int i = 0; i < SUMS; i++)
          if (s + i < end)
            sums[i] = __fmaf_rn(staged[(s + i) * COLUMNS + lane], factors[begin + s + i], sums[i]);
    }
    __syncthreads();
    if (begin + CHUNK < count) fetch(begin + CHUNK);
  }
  if (threadIdx.x < 32 && column + lane < head_dim)
    y[(static_cast<long long>(p.token) * heads + p.head) * head_dim + column + lane] =
        __fdiv_rn(joined(sums), l);
}
