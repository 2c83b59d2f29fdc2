// Rotary position embedding on a GPU, to a matrix or into a paged cache. Ordinary kernels: a block
// a token, a thread a pair.
//   x [tokens, heads, head_dim] float32; rows [tokens, 2] int32 (sequence, position); table
//   [positions, head_dim] float32, cosines, then sines, or null: no rotation; y like x, may be x,
//   or null; pages [pages, heads, page, head_dim] bfloat16 or float32; page_table
//   [sequences, pages_per_sequence] int32

typedef unsigned short bf16;

__device__ inline void keep(float* slot, float x) { *slot = x; }
__device__ inline void keep(bf16* slot, float x) {  // to nearest even
  const unsigned bits = __float_as_uint(x);
  *slot = x != x ? 0x7fff : static_cast<bf16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T>
__device__ inline void rotate(const float* x, const int* rows, const float* table,
                              const int* page_table, float* y, T* pages, int heads, int head_dim,
                              int page, int pages_per_sequence, int half_split) {
  const int sequence = rows[2 * blockIdx.x], position = rows[2 * blockIdx.x + 1];
  const int half = head_dim / 2;
  for (int pair = threadIdx.x; pair < heads * half; pair += blockDim.x) {
    const int head = pair / half, i = pair % half;
    const int i0 = half_split ? i : 2 * i, i1 = half_split ? i + half : 2 * i + 1;
    const long long row = (static_cast<long long>(blockIdx.x) * heads + head) * head_dim;
    float p = x[row + i0], q = x[row + i1];
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

extern "C" __global__ void rope_bf16(const float* x, const int* rows, const float* table,
                                     const int* page_table, float* y, bf16* pages, int heads,
                                     int head_dim, int page, int pages_per_sequence,
                                     int half_split) {
  rotate(x, rows, table, page_table, y, pages, heads, head_dim, page, pages_per_sequence,
         half_split);
}
extern "C" __global__ void rope_f32(const float* x, const int* rows, const float* table,
                                    const int* page_table, float* y, float* pages, int heads,
                                    int head_dim, int page, int pages_per_sequence,
                                    int half_split) {
  rotate(x, rows, table, page_table, y, pages, heads, head_dim, page, pages_per_sequence,
         half_split);
}
