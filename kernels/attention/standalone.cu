// Paged attention by splits of 512 keys on a GPU: a tile is a split of one token's keys, for up to
// 8 queries of one kv head. Ordinary kernels: on the tensor cores for a bfloat16 cache and heads of
// 64 or 128, and for any other.
//   q [tokens, heads, head_dim] float32; rows [tokens, 2] int32 (sequence, position); page_table
//   [sequences, pages_per_sequence] int32; keys and values [pages, kv_heads, page, head_dim];
//   partial [tokens, splits, heads, head_dim + 16] float32: sums, m, l of each query head, split s
//   at s % splits. Where a token sees one split, attention_bf16_whole and attention_f32_whole give
//   y [tokens, heads, head_dim] float32 instead, the sums over l.

typedef unsigned short bf16;

const int SPLIT = 512, BLOCK = 16, GROUP = 8, WARPS = 8;
const int SHARE = SPLIT / WARPS;  // keys of a warp where there are no tensor cores
const int STAGES = 2;  // blocks of keys and values that a warp has under way
const int PAD = 4;     // floats between the sums of two queries
const float LOG2_E = 1.44269504f;

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
__device__ inline void load_matrix4(unsigned (&m)[4], const void* row) {  // four of them
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address(row))
               : "memory");
}
__device__ inline void load_turned4(unsigned (&m)[4], const void* row) {  // each of them transposed
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
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

struct Shape {
  int tokens, heads, kv_heads, head_dim, page, splits, window, pages_per_sequence;
  float scale;
};

// Divides numbers below 2^23 by one of them: a few instructions, where / has twenty.
struct Divider {
  int by;
  float factor;

  __device__ static Divider of(int by) { return {by, __fdividef(1.0f, static_cast<float>(by))}; }
  __device__ int divide(int n, int& rest) const {
    int quotient = static_cast<int>(static_cast<float>(n) * factor);  // or one off
    rest = n - quotient * by;
    if (rest < 0) quotient--, rest += by;
    if (rest >= by) quotient++, rest -= by;
    return quotient;
  }
};

// A tile, and the way to the next one: splits of a token's keys first, then groups of queries that
// share a kv head, then tokens.
struct Tile {
  int token, group;
  unsigned split;
  int sequence;
  unsigned oldest, position;  // of the token, and the keys that it sees, both included

  __device__ void enter(const Shape& a, const int* rows) {
    sequence = rows[2 * token];
    position = rows[2 * token + 1];
    const unsigned window = a.window;
    oldest = window > 0 && position >= window ? position - window + 1 : 0;
    split = oldest / SPLIT;
  }
  __device__ int splits() const { return position / SPLIT - oldest / SPLIT + 1; }
  __device__ void step(const Shape& a, const int* rows, int groups) {
    if (++split <= position / SPLIT) return;
    split = oldest / SPLIT;
    if (++group < groups) return;
    group = 0;
    if (++token < a.tokens) enter(a, rows);
  }
  // To the `number`-th tile of the token.
  __device__ void go(int number) {
    int rest;
    group = Divider::of(splits()).divide(number, rest);
    split = oldest / SPLIT + rest;
  }
  // To the block's first tile of all, of `groups` for each split of a token; returns how many tiles
  // the block has.
  __device__ int share(const Shape& a, const int* rows, int groups) {
    unsigned tiles = 0, before = 0;
#pragma unroll 8
    for (token = 0; token < a.tokens; token++) {
      enter(a, rows);
      tiles += splits() * groups;
    }
    unsigned first = blockIdx.x, count = first < tiles ? 1 : 0;
    if (tiles > gridDim.x) {  // the first blocks have one more
      const unsigned each = tiles / gridDim.x, more = tiles - each * gridDim.x;
      first = blockIdx.x * each + (blockIdx.x < more ? blockIdx.x : more);
      count = each + (blockIdx.x < more ? 1 : 0);
    }
    int found = 0;
    if (a.tokens > 1) {
      unsigned upto = 0;
#pragma unroll 1
      for (token = 0; token < a.tokens; token++) {
        enter(a, rows);
        if (first >= upto) found = token, before = upto;
        upto += splits() * groups;
      }
    }
    token = found;
    enter(a, rows);
    go(first - before);
    return count;
  }
  __device__ int first() const { return split * SPLIT > oldest ? split * SPLIT : oldest; }
  __device__ int end() const {
    return (split + 1) * SPLIT < position + 1 ? (split + 1) * SPLIT : position + 1;
  }
  __device__ int start() const { return first() & ~(BLOCK - 1); }  // of its first block
  __device__ int blocks() const { return (end() - start() + BLOCK - 1) / static_cast<unsigned>(BLOCK); }
};

// Which page holds a key, and the element of the cache where its row begins.
__device__ inline int page_of(const Shape& a, const Tile& t, const int* page_table, int key) {
  return page_table[t.sequence * a.pages_per_sequence + key / a.page];
}
__device__ inline long long row_of(const Shape& a, int kv_head, int page, int key) {
  return static_cast<long long>((page * a.kv_heads + kv_head) * a.page + key % a.page) * a.head_dim;
}
__device__ inline float power(float x) { return exp2_fast(__fmul_rn(x, LOG2_E)); }

// Four columns, from d on, of the warps' sums, in order, to a row of partial, of which the thread of
// the first ones also writes m and l; or over l to a row of y, a token's WHOLE output.
template <bool WHOLE>
__device__ inline void join(float* out, int dim, const float* sums, int pitch, const float* ml,
                            int ml_pitch, int d, int warps) {
  float m = ml[0], l = 0.0f;
#pragma unroll
  for (int warp = 1; warp < WARPS; warp++)
    if (warp < warps) m = fmaxf(m, ml[warp * ml_pitch]);
  float4 y = {};
#pragma unroll
  for (int warp = 0; warp < WARPS; warp++) {
    if (warp >= warps) break;
    const float factor = power(__fadd_rn(ml[warp * ml_pitch], -m));
    const float4 x = *reinterpret_cast<const float4*>(sums + warp * pitch + d);
    y.x = __fmaf_rn(x.x, factor, y.x);
    y.y = __fmaf_rn(x.y, factor, y.y);
    y.z = __fmaf_rn(x.z, factor, y.z);
    y.w = __fmaf_rn(x.w, factor, y.w);
    l = __fmaf_rn(ml[warp * ml_pitch + 1], factor, l);
  }
  if (WHOLE) {
    y.x = __fdiv_rn(__fadd_rn(y.x, 0.0f), l);
    y.y = __fdiv_rn(__fadd_rn(y.y, 0.0f), l);
    y.z = __fdiv_rn(__fadd_rn(y.z, 0.0f), l);
    y.w = __fdiv_rn(__fadd_rn(y.w, 0.0f), l);
  }
  *reinterpret_cast<float4*>(out + d) = y;
  if (WHOLE || d != 0) return;
  out[dim] = m;
  out[dim + 1] = l;
}

// In which byte of the ring's 16 keys or values is piece `piece`, of 8 columns, of a row. A row's
// pieces lie in an order of its own: banks differ when eight lanes read one piece of eight rows.
template <int DIM>
__device__ inline int place_in_ring(int row, int piece) {
  return (row * (DIM / 8) + (piece ^ row % 8)) * 16;
}

// A warp's sums over its blocks so far, of 8 queries: a lane has queries 2 (lane % 4) and the next,
// columns 16 i + lane / 4, and 8 more from sums[][2] on. Keys, then columns of values, are on the
// tensor cores' side of 16.
template <int DIM>
struct State {
  float sums[DIM / 16][4], m[2], l[2];

  __device__ void begin() {
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
      for (int j = 0; j < 4; j++) sums[i][j] = 0.0f;
    m[0] = m[1] = __uint_as_float(0xff800000u);
    l[0] = l[1] = 0.0f;
  }

  // The weights of 16 keys, of which those from `low` to `high` are seen, and how they rescale what
  // was added before them. Of a run of 16 columns the lane reads a piece of one key for the others,
  // at places[run % 4], and 128 bytes later that of the fourth run after it.
  __device__ void score(float (&weights)[4], float (&rescale)[2],
                        const unsigned (&queries)[DIM / 16][2], const char* keys,
                        const int (&places)[4], int low, int high, float scale) {
    float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
    unsigned x[DIM / 16][4];  // all loads precede the first product
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) load_matrix4(x[i], keys + places[i % 4] + i / 4 * 128);
#pragma unroll
    for (int i = 0; i < DIM / 16; i += 2) {
      multiply16(even, x[i], queries[i][0], queries[i][1]);
      multiply16(odd, x[i + 1], queries[i + 1][0], queries[i + 1][1]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) weights[j] = __fmul_rn(__fadd_rn(even[j], odd[j]), scale);
    if (low > 0 || high < BLOCK)  // a key that is not seen weighs 0
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const int key = threadIdx.x % 32 / 4 + j / 2 * 8;
        if (key < low || key >= high) weights[j] = __uint_as_float(0xff800000u);
      }
    float top[2], sum[2];
#pragma unroll
    for (int j = 0; j < 2; j++) top[j] = fmaxf(weights[j], weights[j + 2]);  // of a query
#pragma unroll
    for (int mask = 16; mask >= 4; mask /= 2)
#pragma unroll
      for (int j = 0; j < 2; j++) top[j] = fmaxf(top[j], __shfl_xor_sync(~0u, top[j], mask));
#pragma unroll
    for (int j = 0; j < 2; j++) {
      top[j] = fmaxf(m[j], top[j]);
      rescale[j] = power(__fadd_rn(m[j], -top[j]));
      m[j] = top[j];
      weights[j] = power(__fadd_rn(weights[j], -top[j]));
      weights[j + 2] = power(__fadd_rn(weights[j + 2], -top[j]));
      sum[j] = __fadd_rn(weights[j], weights[j + 2]);
    }
#pragma unroll
    for (int mask = 16; mask >= 4; mask /= 2)
#pragma unroll
      for (int j = 0; j < 2; j++) sum[j] = __fadd_rn(sum[j], __shfl_xor_sync(~0u, sum[j], mask));
#pragma unroll
    for (int j = 0; j < 2; j++) l[j] = __fmaf_rn(l[j], rescale[j], sum[j]);
  }

  // Adds their values, from likewise.
  __device__ void add(const float (&weights)[4], const float (&rescale)[2], const char* values,
                      const int (&places)[4], int low, int high) {
    const unsigned w0 = transpose8(narrow2(weights[0], weights[1]));
    const unsigned w1 = transpose8(narrow2(weights[2], weights[3]));
    unsigned v[DIM / 16][4];  // of keys 2 (lane % 4) and the next, and 8 later
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) load_turned4(v[i], values + places[i % 4] + i / 4 * 128);
    if (low > 0 || high < BLOCK) {  // what is not seen may hold anything
      unsigned seen[2];
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int key = threadIdx.x % 4 * 2 + j * 8;
        seen[j] = (key >= low && key < high ? 0xffffu : 0) |
                  (key + 1 >= low && key + 1 < high ? 0xffff0000u : 0);
      }
#pragma unroll
      for (int i = 0; i < DIM / 16; i++)
        for (int j = 0; j < 4; j++) v[i][j] &= seen[j / 2];
    }
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
      for (int j = 0; j < 4; j++) sums[i][j] = __fmul_rn(sums[i][j], rescale[j % 2]);
      multiply16(sums[i], v[i], w0, w1);
    }
  }

  // to the warp's part of `out` [GROUP][DIM + PAD] and `ml` [GROUP][2]
  __device__ void leave(float* out, float* ml) const {
    const int row = threadIdx.x % 32 / 4, at = threadIdx.x % 4;
    for (int j = 0; j < 4; j++) {
      const int query = at * 2 + j % 2;
#pragma unroll
      for (int i = 0; i < DIM / 16; i++)
        out[query * (DIM + PAD) + i * 16 + j / 2 * 8 + row] = sums[i][j];
      ml[query * 2] = m[j % 2];
      ml[query * 2 + 1] = l[j % 2];
    }
  }
};

// The block's share of all tiles: each warp streams its blocks of keys and values, of tile after
// tile, through a ring of its own; warps meet where a tile's sums are joined.
template <int DIM, bool WHOLE>
__device__ inline void multiply(const Shape& a, const float* q, const int* rows,
                                const int* page_table, const bf16* keys, const bf16* values,
                                float* output, char* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, at = lane % 4;
  const int SLOT = BLOCK * DIM * 2;  // bytes of 16 keys, or of their values
  const int LINE = 256 / DIM;        // rows that a warp copies at once
  char* ring = shared + warp * STAGES * 2 * SLOT;
  float* sums = reinterpret_cast<float*>(shared + WARPS * STAGES * 2 * SLOT);
  float* ml = sums + 2 * WARPS * GROUP * (DIM + PAD);  // both twice: [2][WARPS][GROUP]...
  Tile tile = {}, to;  // that is computed; that is fetched
  tile.enter(a, rows);  // on its way while the shape is divided
  const int group = a.heads / a.kv_heads;
  const int parts = static_cast<unsigned>(group + GROUP - 1) / GROUP;
  const int groups = a.kv_heads * parts;
  const Divider pages = Divider::of(a.page);
  const int end = tile.share(a, rows, groups);
  if (end == 0) return;
  to = tile;

  // Fetching is STAGES blocks ahead of computing, and the page of the block after is on its way.
  // Keys and values are copied apart: a block's keys make room for others while its values are
  // added.
  unsigned fetched = 0, used = 0;
  int fetching = 0, next = warp, blocks_to = to.blocks(), start_to = to.start();
  int head_to = parts == 1 ? to.group : to.group / parts, page = 0, rest = 0;
  long long from = 0;
  int key_places[4], value_places[4], copy_places[8 / LINE];
  for (int i = 0; i < 4; i++)
    key_places[i] = place_in_ring<DIM>(lane % 8 + lane / 8 % 2 * 8, i * 2 + lane / 16);
  for (int i = 0; i < 4; i++)
    value_places[i] = place_in_ring<DIM>(lane % 8 + lane / 16 * 8, i * 2 + lane / 8 % 2);
  for (int i = 0; i < 8 / LINE; i++)
    copy_places[i] = place_in_ring<DIM>(lane / (DIM / 8) + i * LINE, lane % (DIM / 8));
  auto look_up = [&]() {
    while (fetching < end && next >= blocks_to) {
      if (++fetching < end) {
        to.step(a, rows, groups);
        blocks_to = to.blocks();
        start_to = to.start();
        head_to = parts == 1 ? to.group : to.group / parts;
      }
      next = warp;
    }
    if (fetching >= end) return;
    const int place = pages.divide(start_to + next * BLOCK, rest);
    page = page_table[to.sequence * a.pages_per_sequence + place];
  };
  auto copy = [&](const bf16* cache, char* slot) {
    if (fetching < end) {
      const bf16* piece = cache + from + lane * 8;  // of a run: a block does not leave its page
#pragma unroll
      for (int i = 0; i < BLOCK / LINE; i++)
        copy16(slot + copy_places[i % (8 / LINE)] + i / (8 / LINE) * 8 * DIM * 2, piece + i * 256);
    }
    end_copies();
  };
  auto fetch_keys = [&]() {
    from = static_cast<long long>((page * a.kv_heads + head_to) * a.page + rest) * DIM;
    copy(keys, ring + fetched % STAGES * 2 * SLOT);
  };
  auto fetch_values = [&]() {
    copy(values, ring + (fetched++ % STAGES * 2 + 1) * SLOT);
    next += WARPS;
    look_up();
  };
  // A tile's queries: asked for, then rounded.
  float4 columns[DIM / 16];
  unsigned queries[DIM / 16][2];
  auto ask = [&](int head, int count) {
    const float* x = q + static_cast<long long>(head + row) * DIM + at * 2;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
      columns[i] = {0, 0, 0, 0};
      if (row >= count) continue;
      const float2 low = *reinterpret_cast<const float2*>(x + i * 16);
      const float2 high = *reinterpret_cast<const float2*>(x + i * 16 + 8);
      columns[i] = {low.x, low.y, high.x, high.y};
    }
  };
  auto round = [&]() {
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
      queries[i][0] = narrow2(columns[i].x, columns[i].y);
      queries[i][1] = narrow2(columns[i].z, columns[i].w);
    }
  };
  int g0 = (tile.group - head_to * parts) * GROUP, count = group - g0 < GROUP ? group - g0 : GROUP;
  int head = head_to * group + g0, held = tile.token * a.heads + head;
  look_up();
  ask(held, count);
#pragma unroll 1
  for (int i = 0; i < STAGES; i++) {
    fetch_keys();
    fetch_values();
  }

  round();

  for (int number = 0; number < end; number++) {
    if (number > 0) {
      tile.step(a, rows, groups);
      const int kv_head = parts == 1 ? tile.group : tile.group / parts;
      g0 = (tile.group - kv_head * parts) * GROUP;
      count = group - g0 < GROUP ? group - g0 : GROUP;
      head = kv_head * group + g0;
      if (tile.token * a.heads + head != held) {
        held = tile.token * a.heads + head;
        ask(held, count);
        round();
      }
    }
    State<DIM> state;
    state.begin();
    const int blocks = tile.blocks(), first = tile.first(), behind = tile.end();
    int block = tile.start() + warp * BLOCK;  // the warp's next one
    for (int i = warp; i < blocks; i += WARPS, block += WARPS * BLOCK) {
      const char* slot = ring + used++ % STAGES * 2 * SLOT;
      const int low = first - block, high = behind - block;
      float weights[4], rescale[2];
      wait_copies<2 * STAGES - 1>();
      __syncwarp();  // the others' copies are here too
      state.score(weights, rescale, queries, slot, key_places, low, high, a.scale);
      __syncwarp();
      fetch_keys();
      wait_copies<2 * STAGES - 1>();
      __syncwarp();
      state.add(weights, rescale, slot + SLOT, value_places, low, high);
      __syncwarp();
      fetch_values();
    }
    float* mine = sums + number % 2 * WARPS * GROUP * (DIM + PAD);
    float* mine_ml = ml + number % 2 * WARPS * GROUP * 2;
    if (warp < blocks) state.leave(mine + warp * GROUP * (DIM + PAD), mine_ml + warp * GROUP * 2);
    __syncthreads();  // and the tile before the last one has been joined
    const long long place = static_cast<long long>(tile.token) * a.splits + tile.split % a.splits;
    const int OUT = WHOLE ? DIM : DIM + 16;  // of whole output a place is a token
    float* out = output + (place * a.heads + head) * OUT;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * DIM / 4; i += 256)
      join<WHOLE>(out + i / (DIM / 4) * OUT, DIM, mine + i / (DIM / 4) * (DIM + PAD),
           GROUP * (DIM + PAD), mine_ml + i / (DIM / 4) * 2, GROUP * 2, i % (DIM / 4) * 4,
           blocks < WARPS ? blocks : WARPS);
  }
}

__device__ inline float widen(bf16 x) { return __uint_as_float(static_cast<unsigned>(x) << 16); }
__device__ inline float widen(float x) { return x; }

// Any head, one query of a tile: a lane two keys, 32 apart, then a lane a column; warp w has keys
// 64 w to 64 w + 63.
template <bool WHOLE, class T>
__device__ inline void walk(const Shape& a, const Tile& t, const float* q, const int* page_table,
                            const T* keys, const T* values, float* output, int head,
                            char* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, begin = t.split * SPLIT;
  const int kv_head = head / (a.heads / a.kv_heads);
  float* sums = reinterpret_cast<float*>(shared);  // [WARPS][head_dim]
  float* ml = sums + WARPS * a.head_dim;           // [WARPS][2]
  float* weights = ml + WARPS * 2;                 // [SPLIT]
  const float* x = q + (static_cast<long long>(t.token) * a.heads + head) * a.head_dim;
  float score[SHARE / 32], m = __uint_as_float(0xff800000u), l = 0.0f;
  for (int i = 0; i < SHARE / 32; i++) {
    const int key = begin + warp * SHARE + i * 32 + lane;
    score[i] = __uint_as_float(0xff800000u);
    if (key < t.first() || key >= t.end()) continue;
    const T* row = keys + row_of(a, kv_head, page_of(a, t, page_table, key), key);
    float sum[4] = {};
    for (int d = 0; d < a.head_dim; d += 4)
#pragma unroll
      for (int n = 0; n < 4; n++) sum[n] = __fmaf_rn(widen(row[d + n]), x[d + n], sum[n]);
    score[i] = __fmul_rn(__fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3])), a.scale);
    m = fmaxf(m, score[i]);
  }
  for (int mask = 16; mask; mask /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, mask));
  __syncthreads();  // the query before this one has been joined
  for (int i = 0; i < SHARE / 32; i++) {
    const float weight =
        score[i] == __uint_as_float(0xff800000u) ? 0.0f : power(__fadd_rn(score[i], -m));
    weights[warp * SHARE + i * 32 + lane] = weight;
    l = __fadd_rn(l, weight);
  }
  for (int mask = 16; mask; mask /= 2) l = __fadd_rn(l, __shfl_xor_sync(~0u, l, mask));
  ml[warp * 2] = m;
  ml[warp * 2 + 1] = l;
  __syncthreads();
  for (int d = lane; d < a.head_dim; d += 32) {
    float sum = 0.0f;
    for (int j = begin + warp * SHARE; j < begin + (warp + 1) * SHARE; j++)
      if (j >= t.first() && j < t.end())
        sum = __fmaf_rn(widen(values[row_of(a, kv_head, page_of(a, t, page_table, j), j) + d]),
                        weights[j - begin], sum);
    sums[warp * a.head_dim + d] = sum;
  }
  __syncthreads();
  const int skipped = (t.first() - begin) / SHARE;
  const int warps = (t.end() - 1 - begin) / SHARE + 1 - skipped;
  const long long place = static_cast<long long>(t.token) * a.splits + t.split % a.splits;
  const long long row = place * a.heads + head;
  const int pitch = WHOLE ? a.head_dim : a.head_dim + 16;
  for (int d = threadIdx.x * 4; d < a.head_dim; d += 256 * 4)
    join<WHOLE>(output + row * pitch, a.head_dim, sums + skipped * a.head_dim, a.head_dim,
                ml + skipped * 2, 2, d, warps);
}

// The same for the block's share of all tiles, of one query each.
template <bool WHOLE, class T>
__device__ inline void walk(const Shape& a, const float* q, const int* rows, const int* page_table,
                            const T* keys, const T* values, float* output, char* shared) {
  Tile tile = {};
  tile.enter(a, rows);
  for (int left = tile.share(a, rows, a.heads); left > 0; left--) {
    walk<WHOLE>(a, tile, q, page_table, keys, values, output, tile.group, shared);
    tile.step(a, rows, a.heads);
  }
}

// A block's share for a bfloat16 cache.
template <bool WHOLE>
__device__ inline void attend(const Shape& a, const float* q, const int* rows,
                              const int* page_table, const bf16* keys, const bf16* values,
                              float* output, char* shared) {
  if (a.head_dim == 128)
    multiply<128, WHOLE>(a, q, rows, page_table, keys, values, output, shared);
  else if (a.head_dim == 64)
    multiply<64, WHOLE>(a, q, rows, page_table, keys, values, output, shared);
  else
    walk<WHOLE>(a, q, rows, page_table, keys, values, output, shared);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    attention_bf16(const float* q, const int* rows, const int* page_table, const bf16* keys,
                   const bf16* values, float* partial, int tokens, int heads, int kv_heads,
                   int head_dim, int page, int splits, int window, int pages_per_sequence,
                   float scale) {
  extern __shared__ __align__(128) char shared[];
  const Shape a = {tokens, heads,  kv_heads, head_dim,           page,
                   splits, window, pages_per_sequence, scale};
  attend<false>(a, q, rows, page_table, keys, values, partial, shared);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    attention_bf16_whole(const float* q, const int* rows, const int* page_table, const bf16* keys,
                         const bf16* values, float* y, int tokens, int heads, int kv_heads,
                         int head_dim, int page, int splits, int window, int pages_per_sequence,
                         float scale) {
  extern __shared__ __align__(128) char shared[];
  const Shape a = {tokens, heads,  kv_heads, head_dim,           page,
                   splits, window, pages_per_sequence, scale};
  attend<true>(a, q, rows, page_table, keys, values, y, shared);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    attention_f32(const float* q, const int* rows, const int* page_table, const float* keys,
                  const float* values, float* partial, int tokens, int heads, int kv_heads,
                  int head_dim, int page, int splits, int window, int pages_per_sequence,
                  float scale) {
  extern __shared__ __align__(128) char shared[];
  const Shape a = {tokens, heads,  kv_heads, head_dim,           page,
                   splits, window, pages_per_sequence, scale};
  walk<false>(a, q, rows, page_table, keys, values, partial, shared);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    attention_f32_whole(const float* q, const int* rows, const int* page_table, const float* keys,
                        const float* values, float* y, int tokens, int heads, int kv_heads,
                        int head_dim, int page, int splits, int window, int pages_per_sequence,
                        float scale) {
  extern __shared__ __align__(128) char shared[];
  const Shape a = {tokens, heads,  kv_heads, head_dim,           page,
                   splits, window, pages_per_sequence, scale};
  walk<true>(a, q, rows, page_table, keys, values, y, shared);
}
