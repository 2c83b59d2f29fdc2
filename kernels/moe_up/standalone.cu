// The first half of a mixture of experts on a GPU: act[p] = silu(x Wg[e]^T) * (x Wu[e]^T) for each
// pair p of a token and its expert e. An ordinary kernel; a block 8 columns of one slot's expert,
// for all tokens that chose it.
//   x [tokens, k] float32; slots [slots + 1, 2] each expert and the place of its first pair, -1
//   where there is no more; pairs [tokens * top] token * top + choice; w_gate and w_up
//   [experts, n, k], or one tensor [experts, 2 n, k] given twice, in which up begins at up_row;
//   act [tokens * top, n]
// Weights stream through a ring of slices in shared memory to the tensor cores: 16 weight rows on
// the side of 16, up to 8 tokens on that of 8. The block's eight warps each take a part of every
// slice's k; their sums are joined in order. k is a multiple of 16.

typedef unsigned short bf16;

const int ROWS = 16, TOKENS = 8, WARPS = 8;
const int HALF = 8;            // rows of each of the two runs in a tile
const int SLICE = 1024;        // k of a slice
const int PITCH = SLICE + 8;   // of a weight row in shared memory: the rows' banks differ
const int STAGES = 3;          // slices under way

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
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif  // a compiler for another machine brings these functions itself

__device__ inline bf16 narrow(float x) {  // to nearest even
  const unsigned bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return static_cast<bf16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

__device__ inline float gated(float gate, float up) {  // silu(gate) up
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, exp2_fast(__fmul_rn(gate, -1.44269504f)))), up);
}

// The block's product for bfloat16 weights: partial sums of ROWS x TOKENS for each warp.
// `weights(i)` is weight row i, or null where there is none; xs [TOKENS][k + 8].
template <class Rows>
__device__ inline void multiply(Rows weights, bf16* ring, const bf16* xs, float* partials, int k) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int slices = (k + SLICE - 1) / SLICE;
  auto fetch = [&](int slice) {
    const int k0 = slice * SLICE, vectors = (k - k0 < SLICE ? k - k0 : SLICE) / 8;
    for (int i = thread; slice < slices && i < ROWS * vectors; i += 256) {
      const bf16* from = weights(i / vectors);
      const int at = i % vectors * 8;
      if (from) copy16(ring + (slice % STAGES * ROWS + i / vectors) * PITCH + at, from + k0 + at);
    }
    end_copies();
  };
  for (int slice = 0; slice < STAGES - 1; slice++) fetch(slice);
  float sums[2][4] = {};
  for (int slice = 0; slice < slices; slice++) {
    wait_copies<STAGES - 2>();
    __syncthreads();  // this slice is here, and everybody is through with the one before
    fetch(slice + STAGES - 1);
    const int left = k - slice * SLICE;
    const int steps = (left < SLICE ? left : SLICE) / 16, share = (steps + WARPS - 1) / WARPS;
    const bf16* w_row = ring + (slice % STAGES * ROWS + lane % 16) * PITCH + lane / 16 * 8;
    const bf16* x_row = xs + lane % 8 * (k + 8) + slice * SLICE + lane / 8 % 2 * 8;
    const int first = warp * share;
    for (int step = first; step < first + share && step < steps; step++) {
      unsigned a[4], b[4];
      load_matrix4(a, w_row + step * 16);
      load_matrix4(b, x_row + step * 16);
      multiply16(sums[(step - first) % 2], a, b[0], b[1]);
    }
  }
  for (int i = 0; i < 4; i++)
    partials[(warp * ROWS + lane / 4 + i / 2 * 8) * TOKENS + lane % 4 * 2 + i % 2] =
        __fadd_rn(sums[0][i], sums[1][i]);
  __syncthreads();
}
__device__ inline float joined(const float* partials, int row, int token) {
  float sum = partials[row * TOKENS + token];
  for (int warp = 1; warp < WARPS; warp++)
    sum = __fadd_rn(sum, partials[(warp * ROWS + row) * TOKENS + token]);
  return sum;
}

// The same sum for float32 weights by one thread, with slices of 512.
__device__ inline float dot(const float* w, const float* x, int k) {
  float sums[WARPS][2] = {};
  for (int k0 = 0; k0 < k; k0 += SLICE / 2) {
    const int steps = (k - k0 < SLICE / 2 ? k - k0 : SLICE / 2) / 16;
    const int share = (steps + WARPS - 1) / WARPS;
    for (int step = 0; step < steps; step++) {
      float& sum = sums[step / share][step % share % 2];
      for (int i = k0 + step * 16; i < k0 + step * 16 + 16; i++) sum = __fmaf_rn(w[i], x[i], sum);
    }
  }
  float sum = __fadd_rn(sums[0][0], sums[0][1]);
  for (int warp = 1; warp < WARPS; warp++)
    sum = __fadd_rn(sum, __fadd_rn(sums[warp][0], sums[warp][1]));
  return sum;
}

// 256 threads, n / 8 blocks (rounded up) a slot; shared memory: the ring, x, and partials.
extern "C" __global__ void __launch_bounds__(256, 1)
    moe_up_bf16(const int* slots, const int* pairs, const float* x, const bf16* w_gate,
                const bf16* w_up, float* act, int n, int k, int top, int up_row) {
  extern __shared__ __align__(128) char shared[];
  bf16* ring = reinterpret_cast<bf16*>(shared);              // [STAGES][ROWS][PITCH]
  bf16* xs = ring + STAGES * ROWS * PITCH;                   // [TOKENS][k + 8]
  float* partials = reinterpret_cast<float*>(xs + TOKENS * (k + 8));  // [WARPS][ROWS][TOKENS]
  const int thread = threadIdx.x;
  const int groups = (n + HALF - 1) / HALF, slot = blockIdx.x / groups;
  const int expert = slots[2 * slot], first = slots[2 * slot + 1];
  const int count = slots[2 * slot + 3] - first, n0 = blockIdx.x % groups * HALF;
  if (expert < 0) return;
  for (int i = thread; i < count * k; i += 256)
    xs[i / k * (k + 8) + i % k] = narrow(x[(long long)(pairs[first + i / k] / top) * k + i % k]);
  auto row = [&](int i) -> const bf16* {
    const int column = n0 + i % HALF;
    if (column >= n) return nullptr;
    const long long at = (long long)expert * (n + up_row) + column;
    return i < HALF ? w_gate + at * k : w_up + (at + up_row) * k;
  };
  multiply(row, ring, xs, partials, k);
  const int column = n0 + thread % HALF, pair = thread / HALF;
  if (pair < count && column < n)
    act[(long long)(first + pair) * n + column] =
        gated(joined(partials, thread % HALF, pair), joined(partials, HALF + thread % HALF, pair));
}

// float32 weights, for checks: a thread an output, 64 threads a block.
extern "C" __global__ void __launch_bounds__(64)
    moe_up_f32(const int* slots, const int* pairs, const float* x, const float* w_gate,
               const float* w_up, float* act, int n, int k, int top, int up_row) {
  const int groups = (n + HALF - 1) / HALF, slot = blockIdx.x / groups;
  const int expert = slots[2 * slot], first = slots[2 * slot + 1];
  const int pair = first + threadIdx.x / HALF;
  const int column = blockIdx.x % groups * HALF + threadIdx.x % HALF;
  if (expert < 0 || pair >= slots[2 * slot + 3] || column >= n) return;
  const long long at = (long long)expert * (n + up_row) + column;
  const float* row = x + (long long)(pairs[pair] / top) * k;
  act[(long long)pair * n + column] =
      gated(dot(w_gate + at * k, row, k), dot(w_up + (at + up_row) * k, row, k));
}
