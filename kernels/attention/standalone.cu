// Paged attention of one split on a GPU: a block of 256 threads for a split of 256 keys, one token
// and one kv head. Ordinary kernels: on the tensor cores for a bfloat16 cache and heads of 64 or
// 128, and for any other.
//   q [tokens, heads, head_dim] float32; rows [tokens, 2] int32 (sequence, position); page_table
//   [sequences, pages_per_sequence] int32; keys and values [pages, kv_heads, page, head_dim];
//   partial [tokens, splits, heads, head_dim + 16] float32: sums, m, l of each query head

typedef unsigned short bf16;

const int SPLIT = 256, BLOCK = 16, GROUP = 8, WARPS = 8;
const float LOG2_E = 1.44269504f;

#ifdef __CUDACC__
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline unsigned narrow2(float low, float high) {  // two bfloat16, to nearest even
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline unsigned transpose8(unsigned pair) {  // an 8 x 8 matrix of bfloat16
  unsigned turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
  return turned;
}
__device__ inline void multiply16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif  // a compiler for another machine brings these functions itself

struct Shape {
  int heads, kv_heads, head_dim, page, splits, window, pages_per_sequence;
  float scale;
};

// What the block is about: keys [first, end) of a split that the token sees.
struct Place {
  int token, split, kv_head, sequence, first, end;
};
__device__ inline Place place_of(const Shape& a, const int* rows) {
  Place p;
  p.kv_head = blockIdx.x % a.kv_heads;
  p.split = blockIdx.x / a.kv_heads % a.splits;
  p.token = blockIdx.x / (a.kv_heads * a.splits);
  p.sequence = rows[2 * p.token];
  const int position = rows[2 * p.token + 1];
  p.first = p.split * SPLIT;
  p.end = p.first + SPLIT < position + 1 ? p.first + SPLIT : position + 1;
  if (a.window > 0 && position - a.window + 1 > p.first) p.first = position - a.window + 1;
  return p;
}
__device__ inline long long row_of(const Shape& a, const Place& p, const int* page_table, int key) {
  const long long page = page_table[p.sequence * a.pages_per_sequence + key / a.page];
  return ((page * a.kv_heads + p.kv_head) * a.page + key % a.page) * a.head_dim;
}
__device__ inline float power(float x) { return exp2_fast(__fmul_rn(x, LOG2_E)); }
__device__ inline float larger(float x, float y) { return x > y || y != y ? x : y; }

// One column of the warps' sums, in order; the first column's thread also writes m and l.
__device__ inline void join(const Shape& a, const Place& p, int head, int d, const float* sums,
                            int pitch, const float* ml, int ml_pitch, int warps, float* partial) {
  float m = ml[0], l = 0.0f, y = 0.0f;
  for (int warp = 1; warp < warps; warp++) m = larger(m, ml[warp * ml_pitch]);
  for (int warp = 0; warp < warps; warp++) {
    const float factor = power(__fadd_rn(ml[warp * ml_pitch], -m));
    y = __fmaf_rn(sums[warp * pitch + d], factor, y);
    l = __fmaf_rn(ml[warp * ml_pitch + 1], factor, l);
  }
  const long long row = (static_cast<long long>(p.token) * a.splits + p.split) * a.heads + head;
  partial[row * (a.head_dim + 16) + d] = y;
  if (d != 0) return;
  partial[row * (a.head_dim + 16) + a.head_dim] = m;
  partial[row * (a.head_dim + 16) + a.head_dim + 1] = l;
}

// Tensor cores: keys, then columns of values, on the side of 16, up to 8 queries on that of 8. The
// columns of a step are those that a lane finds in 16 bytes: 32 i + 8 (lane % 4) + 4 (step % 2).
template <int DIM>
__device__ inline void multiply(const Shape& a, const Place& p, const float* q,
                                const int* page_table, const bf16* keys, const bf16* values,
                                float* partial, int g0, char* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, at = lane % 4;
  const int group = a.heads / a.kv_heads, count = group - g0 < GROUP ? group - g0 : GROUP;
  const int head = p.kv_head * group + g0;
  const int first_block = p.first / BLOCK, blocks = (p.end - 1) / BLOCK - first_block + 1;
  float* sums = reinterpret_cast<float*>(shared);    // [WARPS][GROUP][DIM]
  float* ml = sums + WARPS * GROUP * DIM;            // [WARPS][GROUP][2]
  const float unseen = __uint_as_float(0xff800000u);

  unsigned queries[DIM / 16][2] = {};
  if (row < count)
    for (int step = 0; step < DIM / 16; step++) {
      const float* x = q + (static_cast<long long>(p.token) * a.heads + head + row) * DIM +
                       step / 2 * 32 + at * 8 + step % 2 * 4;
      queries[step][0] = narrow2(x[0], x[1]);
      queries[step][1] = narrow2(x[2], x[3]);
    }
  float acc[DIM / 16][4] = {}, m[2] = {unseen, unseen}, l[2] = {0.0f, 0.0f};
  for (int i = warp; i < blocks; i += WARPS) {
    const int block = (first_block + i) * BLOCK;
    const long long from = row_of(a, p, page_table, block);
    float even[4] = {}, odd[4] = {}, weights[4], rescale[2];
    for (int j = 0; j < DIM / 32; j++) {
      const bf16* key = keys + from + row * DIM + j * 32 + at * 8;
      const uint4 low = *reinterpret_cast<const uint4*>(key);
      const uint4 high = *reinterpret_cast<const uint4*>(key + 8 * DIM);
      const unsigned k0[4] = {low.x, high.x, low.y, high.y}, k1[4] = {low.z, high.z, low.w, high.w};
      multiply16(even, k0, queries[2 * j][0], queries[2 * j][1]);
      multiply16(odd, k1, queries[2 * j + 1][0], queries[2 * j + 1][1]);
    }
    bool seen[4];
    for (int j = 0; j < 4; j++) {
      const int key = block + row + j / 2 * 8;
      seen[j] = key >= p.first && key < p.end;
      weights[j] = seen[j] ? __fmul_rn(__fadd_rn(even[j], odd[j]), a.scale) : unseen;
    }
    for (int j = 0; j < 2; j++) {  // the lane's two queries
      float top = larger(weights[j], weights[j + 2]);
      for (int mask = 16; mask >= 4; mask /= 2)
        top = larger(top, __shfl_xor_sync(~0u, top, mask));
      top = larger(m[j], top);
      rescale[j] = power(__fadd_rn(m[j], -top));
      m[j] = top;
      weights[j] = seen[j] ? power(__fadd_rn(weights[j], -top)) : 0.0f;
      weights[j + 2] = seen[j + 2] ? power(__fadd_rn(weights[j + 2], -top)) : 0.0f;
      float sum = __fadd_rn(weights[j], weights[j + 2]);
      for (int mask = 16; mask >= 4; mask /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, mask));
      l[j] = __fmaf_rn(l[j], rescale[j], sum);
    }
    const unsigned w0 = transpose8(narrow2(weights[0], weights[1]));
    const unsigned w1 = transpose8(narrow2(weights[2], weights[3]));
    for (int tile = 0; tile < DIM / 16; tile++) {
      // rows of the tile: columns d and, 8 rows later, d + 4; of keys 2 at, 2 at + 1, and 8 later
      const int d = tile / 4 * 64 + row * 8 + tile % 4;
      unsigned v[4];
      for (int j = 0; j < 4; j++) {
        const int key = at * 2 + j / 2 * 8, column = d + j % 2 * 4;
        unsigned pair[2];
        for (int n = 0; n < 2; n++) {
          const int position = block + key + n;
          const bool in = position >= p.first && position < p.end;
          pair[n] = in ? values[from + (key + n) * DIM + column] : 0;
        }
        v[j] = pair[0] | pair[1] << 16;
      }
      for (int j = 0; j < 4; j++) acc[tile][j] = __fmul_rn(acc[tile][j], rescale[j % 2]);
      multiply16(acc[tile], v, w0, w1);
    }
  }
  __syncthreads();  // the queries before these have been joined
  if (warp < blocks)
    for (int j = 0; j < 4; j++) {
      const int query = warp * GROUP + at * 2 + j % 2;
      for (int tile = 0; tile < DIM / 16; tile++)
        sums[query * DIM + tile / 4 * 64 + row * 8 + tile % 4 + j / 2 * 4] = acc[tile][j];
      ml[query * 2] = m[j % 2];
      ml[query * 2 + 1] = l[j % 2];
    }
  __syncthreads();
  for (int i = threadIdx.x; i < count * DIM; i += 256)
    join(a, p, head + i / DIM, i % DIM, sums + i / DIM * DIM, GROUP * DIM, ml + i / DIM * 2,
         GROUP * 2, blocks < WARPS ? blocks : WARPS, partial);
}

__device__ inline float widen(bf16 x) { return __uint_as_float(static_cast<unsigned>(x) << 16); }
__device__ inline float widen(float x) { return x; }

// Any head, one query: a thread a key, then a lane a column; warp w has keys 32 w to 32 w + 31.
template <class T>
__device__ inline void walk(const Shape& a, const Place& p, const float* q, const int* page_table,
                            const T* keys, const T* values, float* partial, int head,
                            char* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, begin = p.split * SPLIT;
  float* sums = reinterpret_cast<float*>(shared);  // [WARPS][head_dim]
  float* ml = sums + WARPS * a.head_dim;           // [WARPS][2]
  float* weights = ml + WARPS * 2;                 // [SPLIT]
  const int key = begin + threadIdx.x;
  const bool seen = key >= p.first && key < p.end;
  float m = __uint_as_float(0xff800000u), weight = 0.0f;
  if (seen) {
    const float* x = q + (static_cast<long long>(p.token) * a.heads + head) * a.head_dim;
    const T* row = keys + row_of(a, p, page_table, key);
    float sum[4] = {};
    for (int d = 0; d < a.head_dim; d++) sum[d % 4] = __fmaf_rn(widen(row[d]), x[d], sum[d % 4]);
    m = __fmul_rn(__fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3])), a.scale);
  }
  const float score = m;
  for (int mask = 16; mask; mask /= 2) m = larger(m, __shfl_xor_sync(~0u, m, mask));
  if (seen) weight = power(__fadd_rn(score, -m));
  float l = weight;
  for (int mask = 16; mask; mask /= 2) l = __fadd_rn(l, __shfl_xor_sync(~0u, l, mask));
  __syncthreads();  // the query before this one has been joined
  weights[threadIdx.x] = weight;
  ml[warp * 2] = m;
  ml[warp * 2 + 1] = l;
  __syncthreads();
  for (int d = lane; d < a.head_dim; d += 32) {
    float sum = 0.0f;
    for (int j = begin + warp * 32; j < begin + warp * 32 + 32; j++)
      if (j >= p.first && j < p.end)
        sum = __fmaf_rn(widen(values[row_of(a, p, page_table, j) + d]), weights[j - begin], sum);
    sums[warp * a.head_dim + d] = sum;
  }
  __syncthreads();
  const int skipped = (p.first - begin) / 32, warps = (p.end - 1 - begin) / 32 + 1 - skipped;
  for (int d = threadIdx.x; d < a.head_dim; d += 256)
    join(a, p, head, d, sums + skipped * a.head_dim, a.head_dim, ml + skipped * 2, 2, warps,
         partial);
}

extern "C" __global__ void __launch_bounds__(256)
    attention_bf16(const float* q, const int* rows, const int* page_table, const bf16* keys,
                   const bf16* values, float* partial, int heads, int kv_heads, int head_dim,
                   int page, int splits, int window, int pages_per_sequence, float scale) {
  extern __shared__ __align__(16) char shared[];
  const Shape a = {heads, kv_heads, head_dim, page, splits, window, pages_per_sequence, scale};
  const Place p = place_of(a, rows);
  if (p.first >= p.end) return;
  const int group = heads / kv_heads;
  if (head_dim == 128)
    for (int g = 0; g < group; g += GROUP)
      multiply<128>(a, p, q, page_table, keys, values, partial, g, shared);
  else if (head_dim == 64)
    for (int g = 0; g < group; g += GROUP)
      multiply<64>(a, p, q, page_table, keys, values, partial, g, shared);
  else
    for (int g = 0; g < group; g++)
      walk(a, p, q, page_table, keys, values, partial, p.kv_head * group + g, shared);
}

extern "C" __global__ void __launch_bounds__(256)
    attention_f32(const float* q, const int* rows, const int* page_table, const float* keys,
                  const float* values, float* partial, int heads, int kv_heads, int head_dim,
                  int page, int splits, int window, int pages_per_sequence, float scale) {
  extern __shared__ __align__(16) char shared[];
  const Shape a = {heads, kv_heads, head_dim, page, splits, window, pages_per_sequence, scale};
  const Place p = place_of(a, rows);
  const int group = heads / kv_heads;
  for (int g = 0; g < group && p.first < p.end; g++)
    walk(a, p, q, page_table, keys, values, partial, p.kv_head * group + g, shared);
}
