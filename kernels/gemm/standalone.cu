// Matrix product for a few tokens on a GPU: y = x w^T (+ residual). An ordinary kernel.
//   x [tokens, k] float32, w [n, k] bfloat16, y and residual [tokens, n] float32 (residual may be
//   null, or y), norm_w [k] float32, null unless x's norm takes its place; norm_y
//   [tokens, k] float32, null unless the norm is to be kept
// A block takes a run of tiles and multiplies them on the tensor cores: 16 weight rows on the side
// of 16, up to 8 tokens on that of 8. Of every slice of 1024 k each of its eight warps has a part,
// which it streams through a ring of its own in shared memory and rounds its part of x for, so that
// warps meet only where a tile's sums are joined, in order. k is a multiple of 16.

typedef unsigned short bf16;

const int ROWS = 16, TOKENS = 8, WARPS = 8;
const int SLICE = 1024;        // k of a slice
const int RUN = SLICE / WARPS; // of it, a warp's at most
const int PITCH = RUN + 8;     // of a weight row in the ring: the rows' banks differ
const int STAGES = 4;          // slices under way
const int SPREAD = 20;         // from the sums of a token to the next one's
const int XS = WARPS * STAGES * ROWS * PITCH * 2 + 2 * WARPS * TOKENS * SPREAD * 4;  // where x lies
const int HELD = 2 * SLICE;    // k of x that lie there where all do not fit

#ifdef __CUDACC__
__device__ inline unsigned address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ inline void copy16(void* to, const void* from) {  // global to shared, in the background
  unsigned long long once;  // nobody reads it again: it leaves the L2 cache before others do
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(
                   address(to)),
               "l"(from), "l"(once)
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
__device__ inline unsigned narrow2(float low, float high) {  // two bfloat16, to nearest even
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
#endif  // a compiler for another machine brings these functions itself

// What this warp multiplies of a slice: `count` steps of 16 k.
struct Run {
  int k, count;  // k where it begins
};
__device__ inline Run run_of(int k, int slice) {
  const int left = k - slice * SLICE, steps = (left < SLICE ? left : SLICE) / 16;
  const int share = (steps + WARPS - 1) / WARPS, first = threadIdx.x / 32 * share;
  const int rest = steps - first;
  return {slice * SLICE + first * 16, rest < 0 ? 0 : rest < share ? rest : share};
}

// The norm that rows of x go through: w [k], null for none. What it needs lies where tiles' partial
// sums leave room: `sums`, SPREAD apart.
// Order: vectors of 4 columns go to 256 threads in turn; lanes are joined in halves, then the warps
// in order; y = (x * r) * w, r = 1 / sqrt(mean + eps).
__device__ inline float norm_factor(float sum, int k, float eps) {
  const float mean = __fdiv_rn(sum, static_cast<float>(k));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}
struct Norm {
  const float* w;
  float eps;
  float* sums;

  __device__ static Norm of(const float* w, float eps, char* shared) {
    return {w, eps, reinterpret_cast<float*>(shared + WARPS * STAGES * ROWS * PITCH * 2) + ROWS};
  }
  // The factors of `count` rows, from(i) each; all threads take part.
  template <class From>
  __device__ void prepare(From from, int count, int k) const {
    if (!w) return;
    for (int row = 0; row < count; row++) {
      float sum = 0.0f;
      for (int at = threadIdx.x * 4; at < k; at += WARPS * 32 * 4)
        for (int i = at; i < at + 4; i++) sum = __fmaf_rn(from(row)[i], from(row)[i], sum);
      for (int mask = 16; mask; mask /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, mask));
      if (threadIdx.x % 32 == 0) sums[(threadIdx.x / 32 * TOKENS + row) * SPREAD] = sum;
    }
    __syncthreads();
    if (threadIdx.x < count) {
      float* row = sums + threadIdx.x * SPREAD;
      float sum = row[0];
      for (int warp = 1; warp < WARPS; warp++) sum = __fadd_rn(sum, row[warp * TOKENS * SPREAD]);
      row[1] = norm_factor(sum, k, eps);
    }
    __syncthreads();
  }
  __device__ float4 applied(float4 x, int row, int at) const {  // columns from `at` on
    if (!w) return x;
    const float r = sums[row * SPREAD + 1];
    const float4 v = *reinterpret_cast<const float4*>(w + at);
    return {__fmul_rn(__fmul_rn(x.x, r), v.x), __fmul_rn(__fmul_rn(x.y, r), v.y),
            __fmul_rn(__fmul_rn(x.z, r), v.z), __fmul_rn(__fmul_rn(x.w, r), v.w)};
  }
};

// Rounds this warp's part of `count` rows of x, from(i) each, to xs [TOKENS][pitch], of which `first`
// is the first k that lies there, two slices at a time, so that many loads are under way: load puts
// them in registers, round into shared memory.
struct Staged {
  Norm norm;
  float4 x[2][TOKENS];

  template <class From>
  __device__ void load(From from, int count, int k, int slice) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < 2; s++) {
      const Run run = run_of(k, slice + s);
#pragma unroll
      for (int i = 0; i < TOKENS; i++)
        if (i < count && lane < run.count * 4)
          x[s][i] = *reinterpret_cast<const float4*>(from(i) + run.k + lane * 4);
    }
  }
  __device__ void round(int count, bf16* xs, int pitch, int first, int k, int slice) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < 2; s++) {
      const Run run = run_of(k, slice + s);
#pragma unroll
      for (int i = 0; i < TOKENS; i++)
        if (i < count && lane < run.count * 4) {
          unsigned* to = reinterpret_cast<unsigned*>(xs + i * pitch + run.k - first + lane * 4);
          const float4 y = norm.applied(x[s][i], i, run.k + lane * 4);
          to[0] = narrow2(y.x, y.y);
          to[1] = narrow2(y.z, y.w);
        }
    }
  }
  // all that is behind the first `slice` slices
  template <class From>
  __device__ void rest(From from, int count, bf16* xs, int k, int slice) {
    for (; slice * SLICE < k; slice += 2) {
      load(from, count, k, slice);
      round(count, xs, k + 8, 0, k, slice);
    }
    __syncwarp();
  }
};

// Steps of 16 k of 16 weight rows and 8 rows of x: even ones to sums[0], odd ones to sums[1].
__device__ inline void multiply(float (&sums)[2][4], const bf16* w, const bf16* x, int x_pitch,
                                int count) {
  const int lane = threadIdx.x % 32;
  w += lane % 16 * PITCH + lane / 16 * 8;
  x += lane % 8 * x_pitch + lane / 8 * 8;
  if (count == 0) return;
  unsigned a[RUN / 16][4], b[RUN / 32][4];  // all loads precede the first product
#pragma unroll
  for (int step = 0; step < RUN / 16; step++) load_matrix4(a[step], w + step * 16);
#pragma unroll
  for (int step = 0; step < RUN / 16; step += 2)  // a step that is not there repeats another
    load_matrix4(b[step / 2],
                 x + (step < count ? step * 16 : 0) - (step + 1 < count ? 0 : lane / 16 * 16));
#pragma unroll
  for (int step = 0; step < RUN / 16; step++)
    if (step < count)
      multiply16(sums[step % 2], a[step], b[step / 2][step % 2 * 2],
                 b[step / 2][step % 2 * 2 + 1]);
}

// Where the block's tiles begin (i = 0) and end (i = 1).
__device__ inline int part(int tiles, int i) {
  return static_cast<unsigned>(tiles) * (blockIdx.x + i) / gridDim.x;
}

// The weight rows of a tile: two runs of up to 8.
struct Rows {
  const bf16 *upper, *lower;
  int uppers, lowers;
};

// The products of tiles [first, end). weights(tile): its rows, each `stride` behind the one before;
// prepare(tile) is called before the first weights set out, begin(tile) while they are on their
// way: they stage the rows of x, where these are new. held(slice) says which k of x is the first in
// shared memory, [TOKENS][pitch]. finish(partials) has the warps' sums.
template <class Weights, class Prepare, class Begin, class Held, class Finish>
__device__ inline void stream(int first, int end, int k, long long stride, char* shared, int pitch,
                              Weights weights, Prepare prepare, Begin begin, Held held,
                              Finish finish) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slices = (k + SLICE - 1) / SLICE;
  bf16* ring = reinterpret_cast<bf16*>(shared) + warp * STAGES * ROWS * PITCH;
  float* partials = reinterpret_cast<float*>(shared + WARPS * STAGES * ROWS * PITCH * 2);
  const bf16* xs = reinterpret_cast<bf16*>(shared + XS);

  int fetched = 0, next_tile = first, next_slice = 0;
  Rows rows = {};
  auto fetch = [&]() {  // this warp's part of the next slice: a lane 16 bytes of every other row
    if (next_tile < end) {
      if (next_slice == 0) rows = weights(next_tile);
      const Run run = run_of(k, next_slice);
      if (lane % 16 < run.count * 2) {
        const int row = lane / 16, at = lane % 16 * 8;
        bf16* slot = ring + (fetched % STAGES * ROWS + row) * PITCH + at;
        const bf16* upper = rows.upper + row * stride + run.k + at;
        const bf16* lower = rows.lower + row * stride + run.k + at;
#pragma unroll
        for (int i = 0; i < ROWS / 2; i += 2)
          if (i + row < rows.uppers) copy16(slot + i * PITCH, upper + i * stride);
#pragma unroll
        for (int i = 0; i < ROWS / 2; i += 2)
          if (i + row < rows.lowers) copy16(slot + (i + ROWS / 2) * PITCH, lower + i * stride);
      }
      if (++next_slice == slices) next_slice = 0, next_tile++;
    }
    fetched++;
    end_copies();
  };

  if (first < end) prepare(first);
  for (int i = 0; i < STAGES; i++) fetch();
  int used = 0;
  for (int tile = first; tile < end; tile++) {
    begin(tile);
    float sums[2][4] = {};
    for (int slice = 0; slice < slices; slice++) {
      const Run run = run_of(k, slice);
      const bf16* x = xs + run.k - held(slice);
      wait_copies<STAGES - 1>();
      __syncwarp();  // the others' copies are here too
      multiply(sums, ring + used++ % STAGES * ROWS * PITCH, x, pitch, run.count);
      __syncwarp();
      fetch();
    }
    float* part = partials + tile % 2 * WARPS * TOKENS * SPREAD;
    for (int i = 0; i < 4; i++)
      part[(warp * TOKENS + lane % 4 * 2 + i % 2) * SPREAD + lane / 4 + i / 2 * 8] =
          __fadd_rn(sums[0][i], sums[1][i]);
    __syncthreads();  // and the tile before the last one has been joined
    finish(part);
  }
}
__device__ inline float joined(const float* partials, int row, int token) {
  float sum = partials[token * SPREAD + row];
  for (int warp = 1; warp < WARPS; warp++)
    sum = __fadd_rn(sum, partials[(warp * TOKENS + token) * SPREAD + row]);
  return sum;
}

// The norm's factor of a row by one thread, in the same order.
__device__ inline float norm_alone(const float* x, int k, float eps) {
  float total = 0.0f;
  for (int warp = 0; warp < WARPS; warp++) {
    float lanes[32] = {};
    for (int lane = 0; lane < 32; lane++)
      for (int at = (warp * 32 + lane) * 4; at < k; at += WARPS * 32 * 4)
        for (int i = at; i < at + 4; i++) lanes[lane] = __fmaf_rn(x[i], x[i], lanes[lane]);
    for (int half = 16; half; half /= 2)
      for (int lane = 0; lane < half; lane++)
        lanes[lane] = __fadd_rn(lanes[lane], lanes[lane + half]);
    total = warp ? __fadd_rn(total, lanes[0]) : lanes[0];
  }
  return norm_factor(total, k, eps);
}
// The same sum for float32 weights by one thread, with slices of 512; r is the factor of x, if its
// norm has weights.
__device__ inline float dot(const float* w, const float* x, int k, const float* norm_w, float r) {
  float sums[WARPS][2] = {};
  for (int k0 = 0; k0 < k; k0 += SLICE / 2) {
    const int steps = (k - k0 < SLICE / 2 ? k - k0 : SLICE / 2) / 16;
    const int share = (steps + WARPS - 1) / WARPS;
    for (int step = 0; step < steps; step++) {
      float& sum = sums[step / share][step % share % 2];
      for (int i = k0 + step * 16; i < k0 + step * 16 + 16; i++)
        sum = __fmaf_rn(w[i], norm_w ? __fmul_rn(__fmul_rn(x[i], r), norm_w[i]) : x[i], sum);
    }
  }
  float sum = __fadd_rn(sums[0][0], sums[0][1]);
  for (int warp = 1; warp < WARPS; warp++)
    sum = __fadd_rn(sum, __fadd_rn(sums[warp][0], sums[warp][1]));
  return sum;
}

// WHOLE: all of x lies in shared memory; otherwise two slices of it, which each tile stages again.
template <bool WHOLE>
__device__ inline void gemm_rows(const float* x, const bf16* w, const float* residual, float* y,
                                 const float* norm_w, float norm_eps, float* norm_y, int tokens,
                                 int n, int k, int height) {
  extern __shared__ __align__(128) char shared[];
  bf16* xs = reinterpret_cast<bf16*>(shared + XS);
  const int row = threadIdx.x % ROWS, token = threadIdx.x / ROWS;
  const int tiles = (n + height - 1) / height, first = part(tiles, 0);
  const int pitch = (WHOLE ? k : HELD) + 8;
  const bool mine = row < height && token < tokens;
  const auto source = [&](int i) { return x + (long long)i * k; };
  Staged staged;
  staged.norm = Norm::of(norm_w, norm_eps, shared);
  staged.norm.prepare(source, tokens, k);
  if (norm_y)  // a block has vectors of 4 columns in turn
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < tokens * k / 4;
         i += gridDim.x * blockDim.x) {
      const int token = i / (k / 4), at = i % (k / 4) * 4;
      const float4 v = *reinterpret_cast<const float4*>(source(token) + at);
      *reinterpret_cast<float4*>(norm_y + (long long)token * k + at) =
          staged.norm.applied(v, token, at);
    }
  int column = 0;
  float added = 0.0f;
  stream(
      first, part(tiles, 1), k, k, shared, pitch,
      [&](int tile) -> Rows {
        const int n0 = tile * height, rows = n - n0 < height ? n - n0 : height;
        const bf16* from = w + (long long)n0 * k;
        return {from, from + (long long)ROWS / 2 * k, rows, rows - ROWS / 2};
      },
      [&](int) { staged.load(source, tokens, k, 0); },
      [&](int tile) {
        column = tile * height + row;
        if (residual && mine && column < n)
          added = residual[(long long)token * n + column];  // on its way meanwhile
        if (!WHOLE || tile != first) return;
        staged.round(tokens, xs, pitch, 0, k, 0);
        staged.rest(source, tokens, xs, k, 2);
      },
      [&](int slice) {
        if (WHOLE) return 0;
        const int held = slice / 2 * HELD;
        if (slice % 2 == 0) {  // what a lane staged before, its warp has multiplied
          staged.round(tokens, xs, pitch, held, k, slice);
          staged.load(source, tokens, k, held + HELD < k ? slice + 2 : 0);
        }
        return held;
      },
      [&](const float* partials) {
        if (!mine || column >= n) return;
        const float sum = joined(partials, row, token);
        y[(long long)token * n + column] = residual ? sum + added : sum;
      });
}

// 256 threads; shared memory: XS bytes and x. `height` rows a tile: 16, or fewer to have a tile for
// every multiprocessor.
extern "C" __global__ void __launch_bounds__(256, 1)
    gemm_bf16(const float* x, const bf16* w, const float* residual, float* y, int tokens, int n,
              int k, int height) {
  gemm_rows<true>(x, w, residual, y, nullptr, 0.0f, nullptr, tokens, n, k, height);
}
extern "C" __global__ void __launch_bounds__(256, 1)
    gemm_normed_bf16(const float* x, const bf16* w, const float* residual, float* y,
                     const float* norm_w, float norm_eps, float* norm_y, int tokens, int n, int k,
                     int height) {
  gemm_rows<true>(x, w, residual, y, norm_w, norm_eps, norm_y, tokens, n, k, height);
}
// The same for a k of any size, of rows that are not normed; shared memory: XS bytes, and HELD columns
// of x.
extern "C" __global__ void __launch_bounds__(256, 1)
    gemm_long_bf16(const float* x, const bf16* w, const float* residual, float* y, int tokens, int n,
                   int k, int height) {
  gemm_rows<false>(x, w, residual, y, nullptr, 0.0f, nullptr, tokens, n, k, height);
}
// float32 weights, for checks: the same order with slices of 512, a thread for each output of a
// tile of 16 rows x 8 tokens, a block a tile. 128 threads.
extern "C" __global__ void __launch_bounds__(128)
    gemm_f32(const float* x, const float* w, const float* residual, float* y, const float* norm_w,
             float norm_eps, float* norm_y, int tokens, int n, int k) {
  const int row = threadIdx.x % ROWS, token = threadIdx.x / ROWS;
  const int column = blockIdx.x * ROWS + row;
  if (norm_y && column == 0 && token < tokens) {
    const float* from = x + (long long)token * k;
    const float r = norm_alone(from, k, norm_eps);
    for (int i = 0; i < k; i++)
      norm_y[(long long)token * k + i] = __fmul_rn(__fmul_rn(from[i], r), norm_w[i]);
  }
  if (token >= tokens || column >= n) return;
  const long long at = (long long)token * n + column;
  const float* xs = x + (long long)token * k;
  const float r = norm_w ? norm_alone(xs, k, norm_eps) : 1.0f;
  const float sum = dot(w + (long long)column * k, xs, k, norm_w, r);
  y[at] = residual ? sum + residual[at] : sum;
}
