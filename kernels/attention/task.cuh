// The attention body: one split of one token's keys, for the query heads of one kv head.
// Order for a bfloat16 cache and heads of 64 or 128: the seen keys' blocks of 16 (at absolute
// positions) go to the 8 compute warps in turn. Scores: queries rounded to bfloat16, steps of 16
// columns, even ones to sum 0, odd ones to sum 1, sum 0 + sum 1, times scale. A block's weights
// e^(s - m') join key j with j + 8, then in halves; l' = fma(l, e^(m - m'), their sum);
// acc' = acc * e^(m - m'), then the block's values times its weights, rounded to bfloat16.
// Otherwise: warp w has keys 32 w to 32 w + 31 of the split. Scores: fused multiply-adds, column i
// to sum i % 4, (0 + 1) + (2 + 3), times scale; weights joined in halves; values by fused
// multiply-adds, keys ascending.
// Both: warps in order by fused multiply-adds with e^(m_w - m). Powers by the GPU's 2^x.
// The cache is read past the L1 cache: this step's tokens may be other workers' work.
struct attention : MkBody {
  enum {
    SPLIT = 256,  // keys
    BLOCK = 16,
    GROUP = 8,    // queries that are multiplied side by side
    PAD = 4,      // floats between the warps' sums of two queries
    KEPT = 128,   // bytes of the arena that hold the arguments, to have them out of registers
    Q_PAD = 32,   // and between the queries: lanes of two rows read side by side
  };
  static constexpr float LOG2_E = 1.44269504f;
  MK_DEVICE static float unseen() { return mk_float(0xff800000); }  // -infinity
  MK_DEVICE static float power(float x) { return mk_exp2(mk_mul(x, LOG2_E)); }

  // A tile's heads, and the keys [first, end) that its token sees in its split.
  struct Seen {
    int token, split, kv_head, sequence, first, end;
    MK_DEVICE int blocks() const { return (end - 1) / BLOCK - first / BLOCK + 1; }
    MK_DEVICE int block(int i) const { return (first / BLOCK + i) * BLOCK; }  // its first position
    // the element of the cache where position j's key or value begins
    MK_DEVICE int64_t at(const AttentionArgs& a, int j) const {
      const int64_t page =
          mk_load_coherent(a.page_table + sequence * a.pages_per_sequence + j / a.page);
      return ((page * a.kv_heads + kv_head) * a.page + j % a.page) * a.head_dim;
    }
  };
  MK_DEVICE static Seen seen(const AttentionArgs& a, int tile) {
    Seen s;
    s.kv_head = tile % a.kv_heads;
    s.split = tile / a.kv_heads % a.splits;
    s.token = tile / (a.kv_heads * a.splits);
    s.first = s.end = s.sequence = 0;
    const int count = mk_load_coherent(a.count);
    const int sequence = mk_load_coherent(a.rows + 2 * s.token);
    const int position = mk_load_coherent(a.rows + 2 * s.token + 1);
    if (s.token >= count) return s;
    s.sequence = sequence;
    s.first = s.split * SPLIT;
    s.end = least(s.first + SPLIT, position + 1);
    if (a.window > 0 && position - a.window + 1 > s.first) s.first = position - a.window + 1;
    return s;
  }
  MK_DEVICE static int least(int a, int b) { return a < b ? a : b; }

  // The tile's keys and values begin their way from memory while its queries are computed.
  MK_DEVICE static void early(const AttentionArgs& a, const MkRun& run, const MkStage& s) {
    if (run.count == 0) return;
    if (s.thread == 0) *reinterpret_cast<AttentionArgs*>(s.buffer) = a;
    const Seen t = seen(a, run.tile(0));
    const int block = s.thread / 4, bytes = BLOCK * a.head_dim * sizeof(mk_kv);
    if (t.first >= t.end || block >= t.blocks()) return;
    const int64_t at = t.at(a, t.block(block));
    for (int i = s.thread % 4 * 128; i < bytes; i += 4 * 128) {
      mk_prefetch(reinterpret_cast<const char*>(a.k_pages + at) + i);
      mk_prefetch(reinterpret_cast<const char*>(a.v_pages + at) + i);
    }
  }

  MK_DEVICE static void compute(const AttentionArgs&, int tile, MkCompute& c) {
    static_assert(sizeof(AttentionArgs) <= KEPT, "the arguments fit");
    const AttentionArgs& a = *reinterpret_cast<const AttentionArgs*>(c.arena);
    const Seen s = seen(a, tile);
    if (s.first < s.end) attend(a, s, a.k_pages, a.v_pages, c);
  }
  MK_DEVICE static void attend(const AttentionArgs& a, const Seen& s, const mk_bf16* keys,
                               const mk_bf16* values, MkCompute& c) {
    const int group = a.heads / a.kv_heads;
    if (a.head_dim == 128)
      for (int g = 0; g < group; g += GROUP) multiply<128>(a, s, g, c);
    else if (a.head_dim == 64)
      for (int g = 0; g < group; g += GROUP) multiply<64>(a, s, g, c);
    else
      for (int g = 0; g < group; g++) walk(a, s, g, keys, values, c);
  }
  MK_DEVICE static void attend(const AttentionArgs& a, const Seen& s, const float* keys,
                               const float* values, MkCompute& c) {
    for (int g = 0; g < a.heads / a.kv_heads; g++) walk(a, s, g, keys, values, c);
  }

  // Tensor cores: 16 keys times 8 queries, then 16 columns of values times 8 queries. A lane loads
  // 16 bytes at a time; which columns and keys a step multiplies is chosen so that they stay where
  // they were loaded.
  template <int DIM>
  struct Keys {
    mk_word4 x[2][DIM / 32];  // keys lane / 4 and 8 + that; columns 32 i + 8 (lane % 4) and on

    MK_DEVICE void load(const mk_bf16* block) {
      block += mk_lane() / 4 * DIM + mk_lane() % 4 * 8;
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < DIM / 32; j++)
          x[i][j] = mk_load_coherent16(block + i * 8 * DIM + j * 32);
    }
  };
  template <int DIM>
  struct Values {
    mk_word4 x[4][DIM / 64];  // keys `key`; columns 64 i + 8 (lane / 4) and on
    MK_DEVICE static int key(int i) { return mk_lane() % 4 * 2 + i % 2 + i / 2 * 8; }

    MK_DEVICE void load(const mk_bf16* block) {
      block += mk_lane() % 4 * 2 * DIM + mk_lane() / 4 * 8;
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < DIM / 64; j++)
          x[i][j] = mk_load_coherent16(block + (i % 2 + i / 2 * 8) * DIM + j * 64);
    }
    // keeps keys in [low, high): memory that no token sees may hold anything
    MK_DEVICE void keep(int low, int high) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const bool seen = key(i) >= low && key(i) < high;
#pragma unroll
        for (int j = 0; j < DIM / 64; j++)
          for (int n = 0; n < 4; n++) x[i][j].v[n] = seen ? x[i][j].v[n] : 0;
      }
    }
  };

  // A warp's sums so far; a lane has columns 64 i + 8 (lane / 4) + j (+ 4 in the
  // upper half of a tile) of queries 2 (lane % 4) and the next.
  template <int DIM>
  struct State {
    float sums[DIM / 16][4];
    float m[2], l[2];

    MK_DEVICE void begin() {
#pragma unroll
      for (int i = 0; i < DIM / 16; i++)
        for (int j = 0; j < 4; j++) sums[i][j] = 0.0f;
      m[0] = m[1] = unseen();
      l[0] = l[1] = 0.0f;
    }

    MK_DEVICE static void score(float (&s)[4], const mk_bf16* q, const Keys<DIM>& keys,
                                float scale) {
      float odd[4] = {0, 0, 0, 0};
      for (int i = 0; i < 4; i++) s[i] = 0.0f;
      q += mk_lane() / 4 * (DIM + Q_PAD) + mk_lane() % 4 * 8;
#pragma unroll
      for (int i = 0; i < DIM / 32; i++) {  // two steps
        const mk_word4 &low = keys.x[0][i], &high = keys.x[1][i];
        const mk_word4 b = *reinterpret_cast<const mk_word4*>(q + i * 32);
        const uint32_t first[4] = {low.v[0], high.v[0], low.v[1], high.v[1]};
        mk_mma(s, first, b.v[0], b.v[1]);
        const uint32_t second[4] = {low.v[2], high.v[2], low.v[3], high.v[3]};
        mk_mma(odd, second, b.v[2], b.v[3]);
      }
      for (int i = 0; i < 4; i++) s[i] = mk_mul(mk_add(s[i], odd[i]), scale);
    }

    // scores of keys lane / 4 (+ 8 from s[2] on) become weights; keys in [low, high) are seen
    MK_DEVICE void soften(float (&s)[4], int low, int high) {
      float rescale[2];
      for (int i = 0; i < 4; i++) {
        const int key = mk_lane() / 4 + i / 2 * 8;
        if (key < low || key >= high) s[i] = unseen();
      }
      for (int i = 0; i < 2; i++) {
        float top = mk_max(s[i], s[i + 2]);
        for (int mask = 16; mask >= 4; mask /= 2) top = mk_max(top, mk_shuffle_xor(top, mask));
        top = mk_max(m[i], top);
        rescale[i] = power(mk_add(m[i], -top));
        m[i] = top;
        for (int j = i; j < 4; j += 2) {
          const int key = mk_lane() / 4 + j / 2 * 8;
          s[j] = key < low || key >= high ? 0.0f : power(mk_add(s[j], -top));
        }
        float sum = mk_add(s[i], s[i + 2]);
        for (int mask = 16; mask >= 4; mask /= 2) sum = mk_add(sum, mk_shuffle_xor(sum, mask));
        l[i] = mk_fma(l[i], rescale[i], sum);
      }
#pragma unroll
      for (int i = 0; i < DIM / 16; i++)
        for (int j = 0; j < 4; j++) sums[i][j] = mk_mul(sums[i][j], rescale[j % 2]);
    }

    MK_DEVICE void add_values(const float (&weights)[4], const Values<DIM>& values) {
      const uint32_t w0 = mk_transpose(mk_narrow2(weights[0], weights[1]));
      const uint32_t w1 = mk_transpose(mk_narrow2(weights[2], weights[3]));
#pragma unroll
      for (int i = 0; i < DIM / 16; i++) {
        const int chunk = i / 4, word = i % 4 / 2, half = i % 2;
        const uint32_t v[4] = {
            pair(values.x[0][chunk].v[word], values.x[1][chunk].v[word], half),
            pair(values.x[0][chunk].v[word + 2], values.x[1][chunk].v[word + 2], half),
            pair(values.x[2][chunk].v[word], values.x[3][chunk].v[word], half),
            pair(values.x[2][chunk].v[word + 2], values.x[3][chunk].v[word + 2], half),
        };
        mk_mma(sums[i], v, w0, w1);
      }
    }
    MK_DEVICE static uint32_t pair(uint32_t x, uint32_t y, int half) {  // one column of two keys
      return half ? x >> 16 | (y & 0xffff0000u) : (x & 0xffff) | y << 16;
    }

    // to a warp's part of the arena: [GROUP][DIM + PAD], and (m, l) [GROUP][2]
    MK_DEVICE void leave(float* out, float* out_m) const {
      const int query = mk_lane() % 4 * 2;
#pragma unroll
      for (int i = 0; i < DIM / 16; i += 4)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const mk_float4 x = {{sums[i][j], sums[i + 1][j], sums[i + 2][j], sums[i + 3][j]}};
          float* to = out + (query + j % 2) * (DIM + PAD) + i * 16 + mk_lane() / 4 * 8 + j / 2 * 4;
          *reinterpret_cast<mk_float4*>(to) = x;
        }
      if (mk_lane() >= 4) return;
      for (int i = 0; i < 2; i++) {
        out_m[(query + i) * 2] = m[i];
        out_m[(query + i) * 2 + 1] = l[i];
      }
    }
  };

  // a query a warp, rounded; those that are not there are 0
  template <int DIM>
  MK_DEVICE static void narrow(mk_bf16* q, const float* from, int count) {
    static_assert(GROUP == MK_COMPUTE_WARPS, "a query for each warp");
    const int row = mk_warp(), at = mk_lane() * 4;
    if (at >= DIM) return;
    mk_float4 x = {{0, 0, 0, 0}};
    if (row < count) x = mk_load_coherent4(from + row * DIM + at);
    uint32_t* to = reinterpret_cast<uint32_t*>(q + row * (DIM + Q_PAD) + at);
    to[0] = mk_narrow2(x.v[0], x.v[1]);
    to[1] = mk_narrow2(x.v[2], x.v[3]);
  }

  // for up to GROUP queries of the group, from query g0 on
  template <int DIM>
  MK_DEVICE static void multiply(const AttentionArgs& a, const Seen& s, int g0, MkCompute& c) {
    const int group = a.heads / a.kv_heads, count = least(group - g0, GROUP);
    const int head = s.kv_head * group + g0, blocks = s.blocks();
    float* sums = reinterpret_cast<float*>(c.arena + KEPT);  // [warps][GROUP][DIM + PAD]
    float* ml = sums + MK_COMPUTE_WARPS * GROUP * (DIM + PAD);  // [warps][GROUP][2]
    int64_t* where = reinterpret_cast<int64_t*>(ml + MK_COMPUTE_WARPS * GROUP * 2);  // [blocks]
    mk_bf16* q = reinterpret_cast<mk_bf16*>(where + SPLIT / BLOCK);  // [GROUP][DIM + Q_PAD]
#pragma unroll 1
    for (int i = mk_warp(); i < blocks; i += MK_COMPUTE_WARPS) {  // all the warp's bytes set out
      const int64_t at = s.at(a, s.block(i));
      if (mk_lane() == 0) where[i] = at;
      mk_prefetch(a.k_pages + at + mk_lane() * (BLOCK * DIM / 32));
      mk_prefetch(a.v_pages + at + mk_lane() * (BLOCK * DIM / 32));
    }
    narrow<DIM>(q, a.q + (int64_t(s.token) * a.heads + head) * DIM, count);
    c.sync();  // the queries are there; what was in the rest of the arena has been read
    if (mk_warp() < blocks) {
      State<DIM> state;
      state.begin();
#pragma unroll 1
      for (int i = mk_warp(); i < blocks; i += MK_COMPUTE_WARPS) {  // once or twice
        const int low = s.first - s.block(i), high = s.end - s.block(i);
        const int64_t at = where[i];
        float weights[4];
        Keys<DIM> k;
        k.load(reinterpret_cast<const mk_bf16*>(a.k_pages) + at);
        state.score(weights, q, k, a.scale);
        state.soften(weights, low, high);
        Values<DIM> v;  // from here on: keys and values at once are more than there are registers
        v.load(reinterpret_cast<const mk_bf16*>(a.v_pages) + at);
        v.keep(low, high);
        state.add_values(weights, v);
      }
      state.leave(sums + mk_warp() * GROUP * (DIM + PAD), ml + mk_warp() * GROUP * 2);
    }
    c.sync();
    const int64_t row = (int64_t(s.token) * a.splits + s.split) * a.heads + head;
    float* partial = a.partial + row * (DIM + 16);
#pragma unroll 1
    for (int i = mk_thread() * 4; i < count * DIM; i += MK_COMPUTERS * 4)
      join(partial + i / DIM * (DIM + 16), DIM, sums + i / DIM * (DIM + PAD), GROUP * (DIM + PAD),
           ml + i / DIM * 2, GROUP * 2, i % DIM, least(blocks, MK_COMPUTE_WARPS));
  }

  // Four columns, from d on, of the warps' sums to a row of partial; the first thread of the row
  // also has m and l.
  MK_DEVICE static void join(float* out, int dim, const float* sums, int pitch, const float* ml,
                             int ml_pitch, int d, int warps) {
    float m = ml[0], l = 0.0f;
#pragma unroll 1
    for (int warp = 1; warp < warps; warp++) m = mk_max(m, ml[warp * ml_pitch]);
    mk_float4 y = {{0, 0, 0, 0}};
#pragma unroll 1
    for (int warp = 0; warp < warps; warp++) {
      const float factor = power(mk_add(ml[warp * ml_pitch], -m));
      const mk_float4 x = *reinterpret_cast<const mk_float4*>(sums + warp * pitch + d);
      for (int i = 0; i < 4; i++) y.v[i] = mk_fma(x.v[i], factor, y.v[i]);
      l = mk_fma(ml[warp * ml_pitch + 1], factor, l);
    }
    mk_store(reinterpret_cast<mk_float4*>(out + d), y);
    if (d != 0) return;
    mk_store(out + dim, m);
    mk_store(out + dim + 1, l);
  }

  // Any head, one query: a lane a key, then a lane a vector of values.
  template <class T>
  MK_DEVICE static void walk(const AttentionArgs& a, const Seen& s, int g, const T* keys,
                             const T* values, MkCompute& c) {
    enum { WIDTH = 16 / sizeof(T) };
    const int head = s.kv_head * (a.heads / a.kv_heads) + g, dim = a.head_dim;
    float* sums = reinterpret_cast<float*>(c.arena + KEPT);                       // [warps][dim]
    float* ml = sums + MK_COMPUTE_WARPS * dim;                             // [warps][2]
    float* weights = ml + MK_COMPUTE_WARPS * 2 + mk_warp() * 32;           // [warps][32]
    const int begin = s.split * SPLIT, mine = begin + mk_warp() * 32;      // the warp's first key
    const int skipped = (s.first - begin) / 32;                            // warps without a key
    const int j = mine + mk_lane();
    const bool sees = j >= s.first && j < s.end;
    float score = unseen();
    if (sees) {
      const float* q = a.q + (int64_t(s.token) * a.heads + head) * dim;
      const T* key = keys + s.at(a, j);
      float sum[4] = {0, 0, 0, 0};
      for (int d = 0; d < dim; d += WIDTH) {
        const mk_word4 k = mk_load_coherent16(key + d);
        for (int i = 0; i < WIDTH; i += 4) {
          const mk_float4 x = mk_load_coherent4(q + d + i);
          for (int n = 0; n < 4; n++) sum[n] = mk_fma(wide(k, i + n, key), x.v[n], sum[n]);
        }
      }
      score = mk_mul(mk_add(mk_add(sum[0], sum[1]), mk_add(sum[2], sum[3])), a.scale);
    }
    const float m = mk_warp_max(score);
    const float weight = sees ? power(mk_add(score, -m)) : 0.0f;
    const float l = mk_warp_sum(weight);
    c.sync();  // what was in the arena has been read
    weights[mk_lane()] = weight;
    if (mk_lane() == 0) {
      ml[mk_warp() * 2] = m;
      ml[mk_warp() * 2 + 1] = l;
    }
    mk_sync_warp();
    const int first = mine > s.first ? mine : s.first, end = least(mine + 32, s.end);
    for (int d = mk_lane() * WIDTH; d < dim; d += 32 * WIDTH) {
      float y[WIDTH] = {};
      for (int i = first; i < end; i++) {
        const mk_word4 v = mk_load_coherent16(values + s.at(a, i) + d);
        for (int n = 0; n < WIDTH; n++) y[n] = mk_fma(wide(v, n, values), weights[i - mine], y[n]);
      }
      for (int n = 0; n < WIDTH; n++) sums[mk_warp() * dim + d + n] = y[n];
    }
    c.sync();
    const int64_t row = (int64_t(s.token) * a.splits + s.split) * a.heads + head;
    const int warps = (s.end - 1 - begin) / 32 + 1 - skipped;
    float* partial = a.partial + row * (dim + 16);
    for (int d = mk_thread() * 4; d < dim; d += MK_COMPUTERS * 4)
      join(partial, dim, sums + skipped * dim, dim, ml + skipped * 2, 2, d, warps);
  }
  MK_DEVICE static float wide(const mk_word4& x, int i, const mk_bf16*) {
    return mk_widen(static_cast<mk_bf16>(x.v[i / 2] >> i % 2 * 16));
  }
  MK_DEVICE static float wide(const mk_word4& x, int i, const float*) { return mk_float(x.v[i]); }
};
