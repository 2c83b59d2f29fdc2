// Matrix product for a few tokens on a GPU: y = x w^T (+ residual). An ordinary kernel.
//
// A block takes tiles of 16 weight rows, streams them through a ring of slices in shared memory,
// and multiplies on the tensor cores: weight rows on the side of 16, up to 8 tokens on that of 8.
// Its eight warps each take a part of every slice's k; their sums are joined in order.
//   x [tokens, k] float32, w [n, k] bfloat16, y and residual [tokens, n] float32 (residual may be
//   null, or y); k a multiple of 16; 256 threads; shared memory: ring, x and partials below.

typedef unsigned short bf16;

const int ROWS = 16, TOKENS = 8, WARPS = 8;
const int SLICE = 1024;        // k of a slice
const int PITCH = SLICE + 8;   // of a weight row in shared memory: the rows' banks differ
const int STAGES = 3;          // slices in the ring

#ifdef __CUDACC__
__device__ inline unsigned address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ inline void copy16(void* to, const void* from) {  // global to shared, in the background
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(to)), "l"(from)
               : "memory");
}
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups>
__device__ inline void wait_copies() {  // until at most so many groups are under way
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}
__device__ inline void load_matrix4(unsigned (&m)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address(row))
               : "memory");
}
__device__ inline void multiply16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif  // a compiler for another machine brings these functions itself

__device__ inline bf16 narrow(float x) {  // to nearest even
  const unsigned bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return static_cast<bf16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

extern "C" __global__ void __launch_bounds__(256)
    gemm_bf16(const float* x, const bf16* w, const float* residual, float* y, int tokens, int n,
              int k) {
  extern __shared__ __align__(128) char shared[];
  bf16* ring = reinterpret_cast<bf16*>(shared);              // [STAGES][ROWS][PITCH]
  bf16* xs = ring + STAGES * ROWS * PITCH;                   // [TOKENS][k + 8]
  float* partials = reinterpret_cast<float*>(xs + TOKENS * (k + 8));  // [WARPS][ROWS][TOKENS]
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int tiles = (n + ROWS - 1) / ROWS, slices = (k + SLICE - 1) / SLICE;
  const int pieces = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * slices;

  auto fetch = [&](int piece) {  // one slice of one tile
    if (piece < pieces) {
      const int n0 = (blockIdx.x + piece / slices * gridDim.x) * ROWS, k0 = piece % slices * SLICE;
      const int rows = n - n0 < ROWS ? n - n0 : ROWS;
      const int vectors = (k - k0 < SLICE ? k - k0 : SLICE) / 8;
      bf16* slot = ring + piece % STAGES * ROWS * PITCH;
      for (int i = thread; i < rows * vectors; i += 256) {
        const int row = i / vectors, at = i % vectors * 8;
        copy16(slot + row * PITCH + at, w + (long long)(n0 + row) * k + k0 + at);
      }
    }
    end_copies();
  };

  for (int piece = 0; piece < STAGES - 1; piece++) fetch(piece);
  for (int i = thread; i < tokens * k; i += 256) xs[i / k * (k + 8) + i % k] = narrow(x[i]);

  float sums[2][4] = {};
  for (int piece = 0; piece < pieces; piece++) {
    wait_copies<STAGES - 2>();
    __syncthreads();  // this slice is here, and everybody is through with the one before
    fetch(piece + STAGES - 1);
    const int tile = blockIdx.x + piece / slices * gridDim.x, slice = piece % slices;
    const int left = k - slice * SLICE;
    const int steps = (left < SLICE ? left : SLICE) / 16, share = (steps + WARPS - 1) / WARPS;
    const bf16* w_row = ring + piece % STAGES * ROWS * PITCH + lane % 16 * PITCH + lane / 16 * 8;
    const bf16* x_row = xs + lane % 8 * (k + 8) + slice * SLICE + lane / 8 % 2 * 8;
    const int first = warp * share;
    for (int step = first; step < first + share && step < steps; step++) {
      unsigned a[4], b[4];
      load_matrix4(a, w_row + step * 16);
      load_matrix4(b, x_row + step * 16);
      if ((step - first) % 2 == 0)
        multiply16(sums[0], a, b[0], b[1]);
      else
        multiply16(sums[1], a, b[0], b[1]);
    }
    if (slice < slices - 1) continue;
    for (int i = 0; i < 4; i++) {
      const int row = lane / 4 + i / 2 * 8, token = lane % 4 * 2 + i % 2;
      partials[(warp * ROWS + row) * TOKENS + token] = sums[0][i] + sums[1][i];
      sums[0][i] = sums[1][i] = 0.0f;
    }
    __syncthreads();
    const int row = thread % ROWS, token = thread / ROWS, column = tile * ROWS + row;
    if (token < tokens && column < n) {
      float sum = partials[row * TOKENS + token];
      for (int other = 1; other < WARPS; other++)
        sum += partials[(other * ROWS + row) * TOKENS + token];
      const long long at = (long long)token * n + column;
      y[at] = residual ? sum + residual[at] : sum;
    }
  }
}

// float32 weights, for checks: the same order with slices of 512, a thread for each output of a
// tile of 16 rows x 8 tokens, a block a tile. 128 threads.
extern "C" __global__ void __launch_bounds__(128)
    gemm_f32(const float* x, const float* w, const float* residual, float* y, int tokens, int n,
             int k) {
  const int row = threadIdx.x % ROWS, token = threadIdx.x / ROWS;
  const int column = blockIdx.x * ROWS + row;
  if (token >= tokens || column >= n) return;
  float sums[WARPS][2] = {};
  for (int k0 = 0; k0 < k; k0 += SLICE / 2) {
    const int steps = (k - k0 < SLICE / 2 ? k - k0 : SLICE / 2) / 16;
    const int share = (steps + WARPS - 1) / WARPS;
    for (int step = 0; step < steps; step++) {
      float& sum = sums[step / share][step % share % 2];
      for (int i = k0 + step * 16; i < k0 + step * 16 + 16; i++)
        sum = __fmaf_rn(w[(long long)column * k + i], x[(long long)token * k + i], sum);
    }
  }
  float sum = sums[0][0] + sums[0][1];
  for (int warp = 1; warp < WARPS; warp++) sum += sums[warp][0] + sums[warp][1];
  const long long at = (long long)token * n + column;
  y[at] = residual ? sum + residual[at] : sum;
}
