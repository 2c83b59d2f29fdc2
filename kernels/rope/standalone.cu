// Rotary position embedding on a GPU, of normed heads where there is a norm, to a matrix or into a
// paged cache. Ordinary kernels: a block of whole warps a token, a warp a head at a time.
//   x [tokens, heads, head_dim] float32; rows [tokens, 2] int32 (sequence, position); table
//   [positions, head_dim] float32, cosines, then sines, or null: no rotation; y like x, may be x,
//   or null; pages [pages, heads, page, head_dim] bfloat16 or float32; page_table
//   [sequences, pages_per_sequence] int32; w [head_dim] float32 the norm's weights, or null: none

typedef unsigned short bf16;

__device__ inline void keep(float* slot, float x) { *slot = x; }
__device__ inline void keep(bf16* slot, float x) {  // to nearest even
  const unsigned bits = __float_as_uint(x);
  *slot = x != x ? 0x7fff : static_cast<bf16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// 1 / root mean square of a head by a warp: vectors of 4 columns go to the lanes in turn
__device__ inline float scale_of(const float* x, int head_dim, float eps) {
  float sum = 0.0f;
  for (int i = threadIdx.x % 32 * 4; i < head_dim; i += 128)
    for (int j = i; j < i + 4; j++) sum = __fmaf_rn(x[j], x[j], sum);
  for (int mask = 16; mask; mask /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, mask));
  const float mean = __fdiv_rn(sum, static_cast<float>(head_dim));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

template <class T>
__device__ inline void rotate(const float* x, const int* rows, const float* table,
                              const int* page_table, float* y, T* pages, const float* w, int heads,
                              int head_dim, int page, int pages_per_sequence, int half_split,
                              float eps) {
  const int sequence = rows[2 * blockIdx.x], position = rows[2 * blockIdx.x + 1];
  const int half = head_dim / 2;
  for (int head = threadIdx.x / 32; head < heads; head += blockDim.x / 32) {
    const long long row = (static_cast<long long>(blockIdx.x) * heads + head) * head_dim;
    const float r = w ? scale_of(x + row, head_dim, eps) : 1.0f;  // all lanes have read the head
    for (int i = threadIdx.x % 32; i < half; i += 32) {
      const int i0 = half_split ? i : 2 * i, i1 = half_split ? i + half : 2 * i + 1;
      float p = x[row + i0], q = x[row + i1];
      if (w) {
        p = __fmul_rn(__fmul_rn(p, r), w[i0]);
        q = __fmul_rn(__fmul_rn(q, r), w[i1]);
      }
      if (table) {
        const float c = table[static_cast<long long>(position) * head_dim + i];
        const float s = table[static_cast<long long>(position) * head_dim + half + i];
        const float turned = __fmaf_rn(p, c, -__fmul_rn(q, s));
        q = __fmaf_rn(q, c, __fmul_rn(p, s));
        p = turned;
      }
      if (y) {
        y[row + i0] = p;
        y[row + i1] = q;
      } else {
        const long long physical = page_table[sequence * pages_per_sequence + position / page];
        T* slot = pages + ((physical * heads + head) * page + position % page) * head_dim;
        keep(slot + i0, p);
        keep(slot + i1, q);
      }
    }
  }
}

extern "C" __global__ void rope_bf16(const float* x, const int* rows, const float* table,
                                     const int* page_table, float* y, bf16* pages, const float* w,
                                     int heads, int head_dim, int page, int pages_per_sequence,
                                     int half_split, float eps) {
  rotate(x, rows, table, page_table, y, pages, w, heads, head_dim, page, pages_per_sequence,
         half_split, eps);
}
extern "C" __global__ void rope_f32(const float* x, const int* rows, const float* table,
                                    const int* page_table, float* y, float* pages, const float* w,
                                    int heads, int head_dim, int page, int pages_per_sequence,
                                    int half_split, float eps) {
  rotate(x, rows, table, page_table, y, pages, w, heads, head_dim, page, pages_per_sequence,
         half_split, eps);
}
