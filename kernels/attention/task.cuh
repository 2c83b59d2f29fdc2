// The attention body: one split of one token's keys, for the query heads of one kv head.
// Order for a bfloat16 cache and heads of 64 or 128: the seen keys' blocks of 16 (at absolute
// positions) go to the 8 compute warps in turn. Scores: queries rounded to bfloat16, steps of 16
// columns, even ones to sum 0, odd ones to sum 1, sum 0 + sum 1, times scale. A block's weights
// e^(s - m') join key j with j + 8, then in halves; l' = fma(l, e^(m - m'), their sum);
// acc' = acc * e^(m - m'), then the block's values times its weights, rounded to bfloat16.
// Otherwise: warp w has keys 64 w to 64 w + 63 of the split, a lane two of them, 32 apart. Scores: fused multiply-adds, column i
// to sum i % 4, (0 + 1) + (2 + 3), times scale; weights joined in halves; values by fused
// multiply-adds, keys ascending.
// Both: warps in order by fused multiply-adds with e^(m_w - m). Powers by the GPU's 2^x.
//
// For the tensor cores, keys and values of earlier steps come through the ring, a chunk a run of
// positions; those of this step, which other workers wrote, are put into their places there by the
// warp that reads them.
struct attention : MkBody {
  enum {
    SPLIT = 512,  // keys
    SHARE = SPLIT / MK_COMPUTE_WARPS,  // of them, a warp's where there are no tensor cores
    BLOCK = 16,
    GROUP = 8,    // queries that are multiplied side by side
    CHUNK = 32768,  // bytes of keys and values that come together
    PAD = 4,      // floats between the warps' sums of two queries
    Q_PAD = 32,   // and between the queries: lanes of two rows read side by side
  };
  static constexpr float LOG2_E = 1.44269504f;
  MK_DEVICE static float unseen() { return mk_float(0xff800000); }  // -infinity
  MK_DEVICE static float power(float x) { return mk_exp2(mk_mul(x, LOG2_E)); }

  // A tile's heads and place in partial, and the keys [first, end) that its token sees in its split;
  // those from `fresh` on were written in this step.
  struct Seen {
    int token, place, kv_head, sequence, first, end, fresh;
    MK_DEVICE int blocks() const { return (end - 1) / BLOCK - first / BLOCK + 1; }
    MK_DEVICE int block(int i) const { return (first / BLOCK + i) * BLOCK; }  // its first position
    MK_DEVICE int64_t at(const AttentionArgs& a, int64_t page, int j) const {
      return ((page * a.kv_heads + kv_head) * a.page + j % a.page) * a.head_dim;
    }
    // the element of the cache where position j's key or value begins
    MK_DEVICE int64_t at(const AttentionArgs& a, int j) const {
      const int place = sequence * a.pages_per_sequence + j / a.page;
      return at(a, mk_load_coherent(a.page_table + place), j);
    }
  };
  typedef MkDivider Divider;
  // What a tile is made of: split s of a token is at place s % splits of partial.
  struct Place {
    int token, place, kv_head;
  };
  struct Places {
    Divider heads, splits;
    int step;
    MK_DEVICE static Places of(const AttentionArgs& a) {
      return {Divider::of(a.kv_heads), Divider::of(a.splits), a.split_step};
    }
    MK_DEVICE Place at(int tile) const {
      Place p;
      int index;
      p.token = splits.divide(heads.divide(tile, p.kv_head), index);
      splits.divide((index + p.token) * step, p.place);
      return p;
    }
    // The split at a place, of those that a token may see whose first one is `first`.
    MK_DEVICE int split(int place, int first) const {
      int at;
      splits.divide(first, at);
      return first + place - at + (place < at ? splits.by : 0);
    }
  };
  MK_DEVICE static Seen seen(const AttentionArgs& a, const Places& places, const Place& p,
                             int sequence, int position, int fresh) {
    Seen s = {p.token, p.place, p.kv_head, sequence, 0, 0, fresh};
    if (sequence < 0) return s;
    const int oldest = a.window > 0 ? most(position - a.window + 1, 0) : 0;
    const int begin = places.split(p.place, oldest / SPLIT) * SPLIT;
    s.first = most(begin, oldest);
    s.end = least(begin + SPLIT, position + 1);
    return s;
  }
  MK_DEVICE static int least(int a, int b) { return a < b ? a : b; }
  MK_DEVICE static int most(int a, int b) { return a > b ? a : b; }

  // Whether keys and values come through the ring, and how many of them a chunk holds.
  MK_DEVICE static bool streams(const AttentionArgs& a) {
    return sizeof(mk_kv) == 2 && (a.head_dim == 64 || a.head_dim == 128);
  }
  MK_DEVICE static int chunk_keys(int head_dim) { return CHUNK / 4 / head_dim; }

  // A lane knows of the next tile a page, and a token (sequence, or -1; position; the first position
  // of this step in its sequence), or every 32nd one.
  enum { PAGE = 0, TOKEN = 1, SETS = MK_ROWS > 32 ? 2 : 1 };
  static_assert(MK_ROWS <= 64, "a lane has two tokens at most");
  MK_DEVICE static void begin(const AttentionArgs& a, const MkRun&, MkLoad& ring) {
    if (!streams(a)) return;
    const int count = mk_load_coherent(a.count);
    int32_t sequence[SETS], position[SETS], fresh[SETS];
#pragma unroll
    for (int i = 0; i < SETS; i++) {
      const int token = mk_lane() + 32 * i;
      sequence[i] = -1, position[i] = 0;
      if (token < count) {
        sequence[i] = mk_load_coherent(a.rows + 2 * token);
        position[i] = mk_load_coherent(a.rows + 2 * token + 1);
      }
      fresh[i] = position[i];
    }
#pragma unroll
    for (int j = 0; j < SETS; j++)
#pragma unroll 1
      for (int i = 0; i < count - 32 * j && (SETS == 1 || i < 32); i++) {
        const int32_t other = mk_shuffle(position[j], i), its = mk_shuffle(sequence[j], i);
        for (int n = 0; n < SETS; n++)
          if (its == sequence[n]) fresh[n] = least(fresh[n], other);
      }
#pragma unroll
    for (int i = 0; i < SETS; i++) {
      ring.notes[TOKEN + 3 * i] = sequence[i];
      ring.notes[TOKEN + 3 * i + 1] = position[i];
      ring.notes[TOKEN + 3 * i + 2] = fresh[i];
    }
    const Places p = Places::of(a);
    ring.shared[0] = p.heads.factor;
    ring.shared[1] = p.splits.factor;
    ring.notes[PAGE] = page_of(a, ring, ring.next);
  }
  // what the lane of a token knows of it
  MK_DEVICE static int32_t known(const MkLoad& ring, int token, int what) {
    const int32_t first = mk_shuffle(ring.notes[TOKEN + what], token % 32);
    if (SETS == 1) return first;
    const int32_t second = mk_shuffle(ring.notes[TOKEN + 3 * (SETS - 1) + what], token % 32);
    return token < 32 ? first : second;
  }
  MK_DEVICE static Seen seen(const AttentionArgs& a, const MkLoad& ring, int tile) {
    const Places all = {{a.kv_heads, ring.shared[0]}, {a.splits, ring.shared[1]}, a.split_step};
    const Place p = all.at(tile);
    return seen(a, all, p, known(ring, p.token, 0), known(ring, p.token, 1),
                known(ring, p.token, 2));
  }
  // lane l: the l-th page of the keys that a tile sees
  MK_DEVICE static int32_t page_of(const AttentionArgs& a, const MkLoad& ring, int tile) {
    if (tile < 0) return 0;
    const Seen s = seen(a, ring, tile);
    const int page = s.block(0) / a.page + mk_lane();
    if (s.first >= s.end || page * a.page >= s.end) return 0;
    return mk_load_coherent(a.page_table + s.sequence * a.pages_per_sequence + page);
  }

  // A chunk: keys, then values, of `keys` positions, less those that are not seen or not yet there.
  MK_DEVICE static void load(const AttentionArgs& a, int tile, MkLoad& ring) {
    if (!streams(a)) return;
    const Seen s = seen(a, ring, tile);
    const int32_t pages = ring.notes[PAGE];
    ring.notes[PAGE] = page_of(a, ring, ring.next);
    if (s.first >= s.end) return;
    const int keys = chunk_keys(a.head_dim), row = a.head_dim * int(sizeof(mk_kv));
    const int old = least(s.end, s.fresh), start = s.first / keys * keys, page_keys = a.page;
    const int first_page = s.block(0) / page_keys;
    // a lane's keys or values of one page: lanes 2 i and 2 i + 1 have the i-th page of a chunk
    const char* cache = reinterpret_cast<const char*>(mk_lane() % 2 ? a.v_pages : a.k_pages);
    const int heads = a.kv_heads, side = mk_lane() % 2 * keys;
#pragma unroll 1
    for (int g = 0; g < a.heads / heads; g += GROUP) {
      int number = start / page_keys;  // the chunk's first page
#pragma unroll 1
      for (int chunk = start; chunk < s.end; chunk += keys) {
        while ((number + 1) * page_keys <= chunk) number++;
        const int low = most(s.block(0), chunk), high = least(old, chunk + keys);
        char* to = ring.claim(CHUNK, most(high - low, 0) * 2 * row);
        const int mine = number + mk_lane() / 2;
        const int64_t page = mk_shuffle(pages, (mine - first_page) & 31);
        const int begin = most(low, mine * page_keys), end = least(high, (mine + 1) * page_keys);
        if (begin < end)
          ring.piece(to + (begin - chunk + side) * row,
                     cache + ((page * heads + s.kv_head) * page_keys + begin - mine * page_keys) * row,
                     (end - begin) * row);
        ring.commit(CHUNK);
      }
    }
  }

  // notes: [tokens, then each one's sequence, position and the first position of this step], then
  // the factors of the dividers, and the queries of a kv head. More than 8 tokens are at the end of
  // the stage buffer.
  enum {
    NOTED = MK_ROWS > 8 ? 0 : MK_ROWS,
    FACTORS = 1 + 3 * NOTED,
    QUERIES = FACTORS + 2,
  };
  static_assert(QUERIES < MK_NOTES, "the notes have room");
  MK_DEVICE static int tokens_at(const AttentionArgs& a) {  // in the stage buffer
    const int sums = MK_COMPUTE_WARPS * 4;
    if (streams(a))
      return sums * GROUP * (a.head_dim + PAD + 2) + GROUP * (a.head_dim + Q_PAD) * int(sizeof(mk_kv));
    return sums * (a.head_dim + 2 + SHARE);
  }
  MK_DEVICE static int32_t* tokens(const AttentionArgs& a, int32_t* notes, char* buffer) {
    return NOTED ? notes + 1 : reinterpret_cast<int32_t*>(buffer + tokens_at(a));
  }
  MK_DEVICE static void early(const AttentionArgs& a, const MkRun&, const MkStage& s) {
    const int count = mk_load_immutable(a.count), t = s.thread;
    int32_t* where = tokens(a, s.notes, s.buffer) + 3 * t;
    if (t == 0) {
      const Places p = Places::of(a);
      s.notes[0] = count;
      s.notes[FACTORS] = static_cast<int32_t>(p.heads.factor);
      s.notes[FACTORS + 1] = static_cast<int32_t>(p.splits.factor);
      s.notes[QUERIES] = a.heads / a.kv_heads;
    }
    if (t >= count) return;
    const int sequence = mk_load_immutable(a.rows + 2 * t);
    const int position = mk_load_immutable(a.rows + 2 * t + 1);
    int fresh = position;
#pragma unroll 1
    for (int i = 0; i < count; i++)
      if (mk_load_immutable(a.rows + 2 * i) == sequence)
        fresh = least(fresh, mk_load_immutable(a.rows + 2 * i + 1));
    where[0] = sequence;
    where[1] = position;
    where[2] = fresh;
  }

  MK_DEVICE static Places places(const AttentionArgs& a, const MkCompute& c) {
    return {{a.kv_heads, static_cast<uint32_t>(c.notes[FACTORS])},
            {a.splits, static_cast<uint32_t>(c.notes[FACTORS + 1])},
            a.split_step};
  }
  MK_DEVICE static void compute(const AttentionArgs& a, int tile, MkCompute& c) {
    const Places all = places(a, c);
    const Place p = all.at(tile);
    if (p.token >= c.notes[0]) return;
    const int32_t* where = NOTED ? c.notes + 1 : tokens(a, nullptr, c.arena);
    where += 3 * p.token;
    const Seen s = seen(a, all, p, where[0], where[1], where[2]);
    if (s.first < s.end) attend(a, s, tile, a.k_pages, a.v_pages, c);
  }
  MK_DEVICE static void attend(const AttentionArgs& a, const Seen& s, int tile,
                               const mk_bf16* keys, const mk_bf16* values, MkCompute& c) {
    const int group = c.notes[QUERIES];
    if (a.head_dim == 128)
#pragma unroll 1
      for (int g = 0; g < group; g += GROUP) multiply<128>(a, s, tile, g, c);
    else if (a.head_dim == 64)
#pragma unroll 1
      for (int g = 0; g < group; g += GROUP) multiply<64>(a, s, tile, g, c);
    else
#pragma unroll 1
      for (int g = 0; g < group; g++) walk(a, s, g, keys, values, c);
  }
  MK_DEVICE static void attend(const AttentionArgs& a, const Seen& s, int, const float* keys,
                               const float* values, MkCompute& c) {
#pragma unroll 1
    for (int g = 0; g < c.notes[QUERIES]; g++) walk(a, s, g, keys, values, c);
  }

  // Tensor cores: 16 keys times 8 queries, then 16 columns of values times 8 queries. A lane loads
  // 16 bytes at a time from a chunk; which columns and keys a step multiplies is chosen so that
  // they stay where they were loaded.
  template <int DIM>
  struct Keys {
    mk_word4 x[2][DIM / 32];  // keys lane / 4 and 8 + that; columns 32 i + 8 (lane % 4) and on

    MK_DEVICE void load(const mk_bf16* block) {
      block += mk_lane() / 4 * DIM + mk_lane() % 4 * 8;
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < DIM / 32; j++)
          x[i][j] = *reinterpret_cast<const mk_word4*>(block + i * 8 * DIM + j * 32);
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
          x[i][j] = *reinterpret_cast<const mk_word4*>(block + (i % 2 + i / 2 * 8) * DIM + j * 64);
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
      return mk_halves(x, y, half);
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

  // A query a warp; those that are not there are 0.
  template <int DIM>
  MK_DEVICE static mk_float4 fetched(const AttentionArgs& a, int token, int kv_head, int group,
                                     int g0) {
    static_assert(GROUP == MK_COMPUTE_WARPS, "a query for each warp");
    const int row = g0 + mk_warp(), at = mk_lane() * 4, head = kv_head * group + row;
    mk_float4 x = {{0, 0, 0, 0}};
    if (row < group && at < DIM)
      x = mk_load_coherent4(a.q + (int64_t(token) * a.heads + head) * DIM + at);
    return x;
  }

  // for up to GROUP queries of the group, from query g0 on
  template <int DIM>
  MK_DEVICE static void multiply(const AttentionArgs& a, const Seen& s, int tile, int g0,
                                 MkCompute& c) {
    enum { KEYS = CHUNK / 4 / DIM };
    const int group = c.notes[QUERIES], count = least(group - g0, GROUP);
    const int head = s.kv_head * group + g0, blocks = s.blocks();
    float* sums = reinterpret_cast<float*>(c.arena);  // [warps][GROUP][DIM + PAD]
    float* ml = sums + MK_COMPUTE_WARPS * GROUP * (DIM + PAD);  // [warps][GROUP][2]
    mk_bf16* q = reinterpret_cast<mk_bf16*>(ml + MK_COMPUTE_WARPS * GROUP * 2);  // [GROUP][DIM + Q_PAD]
    mk_float4 x = c.ahead;
    if (g0 != 0 || c.ahead_of != tile) x = fetched<DIM>(a, s.token, s.kv_head, group, g0);
    if (mk_lane() * 4 < DIM) mk_put(q + mk_warp() * (DIM + Q_PAD) + mk_lane() * 4, x);
    c.sync();  // the queries are there; the sums of the tile before have been read
    State<DIM> state;
    state.begin();
#pragma unroll 1
    for (int chunk = s.first / KEYS * KEYS; chunk < s.end; chunk += KEYS) {
      // this warp's block, if the chunk has one: the blocks go to the warps in turn
      const int before = (chunk - s.block(0)) / BLOCK;
      const int i = (mk_warp() - before) & (MK_COMPUTE_WARPS - 1), j = chunk + i * BLOCK;
      if (i >= KEYS / BLOCK || j + BLOCK <= s.first || j >= s.end) {
        c.skip(CHUNK);
        continue;
      }
      mk_bf16* keys = reinterpret_cast<mk_bf16*>(c.take(CHUNK)) + i * BLOCK * DIM;
      const bool patched = j + BLOCK > s.fresh;
      if (patched) patch<DIM>(a, s, j, keys, keys + KEYS * DIM);
      add<DIM>(state, q, keys, keys + KEYS * DIM, a.scale, s.first - j, s.end - j);
      if (patched) mk_fence_async();  // the copy engine will write here next
      c.give_back(CHUNK);
    }
    c.ahead_of = c.next;  // on its way while the sums are joined
    c.ahead = {{0, 0, 0, 0}};
    if (c.next >= 0) {
      const Place p = places(a, c).at(c.next);
      if (p.token < c.notes[0]) c.ahead = fetched<DIM>(a, p.token, p.kv_head, group, 0);
    }
    if (mk_warp() < blocks)
      state.leave(sums + mk_warp() * GROUP * (DIM + PAD), ml + mk_warp() * GROUP * 2);
    c.sync();
    const int64_t row = (int64_t(s.token) * a.splits + s.place) * a.heads + head;
    float* partial = a.partial + row * (DIM + 16);
#pragma unroll 1
    for (int i = mk_thread() * 4; i < count * DIM; i += MK_COMPUTERS * 4)
      join(partial + i / DIM * (DIM + 16), DIM, sums + i / DIM * (DIM + PAD), GROUP * (DIM + PAD),
           ml + i / DIM * 2, GROUP * 2, i % DIM, least(blocks, MK_COMPUTE_WARPS));
  }
  template <int DIM>
  MK_DEVICE static void add(State<DIM>& state, const mk_bf16* q, const mk_bf16* keys,
                            const mk_bf16* values, float scale, int low, int high) {
    float weights[4];
    Keys<DIM> k;
    k.load(keys);
    state.score(weights, q, k, scale);
    state.soften(weights, low, high);
    Values<DIM> v;
    v.load(values);
    if (low > 0 || high < BLOCK) v.keep(low, high);
    state.add_values(weights, v);
  }
  // This step's keys and values of the block at position j, which no copy brings.
  template <int DIM>
  MK_DEVICE static void patch(const AttentionArgs& a, const Seen& s, int j, mk_bf16* keys,
                              mk_bf16* values) {
    enum { VECTORS = DIM / 8 };  // of 16 bytes, a lane each: keys, then values
    const int lane = mk_lane(), column = lane % VECTORS * 8;
    const mk_kv* from = lane < VECTORS ? a.k_pages : a.v_pages;
    mk_bf16* to = lane < VECTORS ? keys : values;
#pragma unroll 1
    for (int i = most(s.fresh, j); i < least(s.end, j + BLOCK); i++)
      if (lane < 2 * VECTORS)
        *reinterpret_cast<mk_word4*>(to + (i - j) * DIM + column) =
            mk_load_coherent16(from + s.at(a, i) + column);
    mk_sync_warp();
  }

  // Four columns, from d on, of the warps' sums to a row of partial; the first thread of the row
  // also has m and l.
  MK_DEVICE static void join(float* out, int dim, const float* sums, int pitch, const float* ml,
                             int ml_pitch, int d, int warps) {
    float ms[MK_COMPUTE_WARPS], ls[MK_COMPUTE_WARPS], m = unseen(), l = 0.0f;
    mk_float4 x[MK_COMPUTE_WARPS], y = {{0, 0, 0, 0}};
#pragma unroll
    for (int warp = 0; warp < MK_COMPUTE_WARPS; warp++) {  // all loads under way
      ms[warp] = unseen();
      ls[warp] = 0.0f;
      x[warp] = {{0, 0, 0, 0}};
      if (warp >= warps) continue;
      ms[warp] = ml[warp * ml_pitch];
      ls[warp] = ml[warp * ml_pitch + 1];
      x[warp] = *reinterpret_cast<const mk_float4*>(sums + warp * pitch + d);
    }
#pragma unroll
    for (int warp = 0; warp < MK_COMPUTE_WARPS; warp++) m = mk_max(m, ms[warp]);
#pragma unroll
    for (int warp = 0; warp < MK_COMPUTE_WARPS; warp++) {  // those that are not there add 0
      const float factor = warp < warps ? power(mk_add(ms[warp], -m)) : 0.0f;
      for (int i = 0; i < 4; i++) y.v[i] = mk_fma(x[warp].v[i], factor, y.v[i]);
      l = mk_fma(ls[warp], factor, l);
    }
    mk_store(reinterpret_cast<mk_float4*>(out + d), y);
    if (d != 0) return;
    mk_store(out + dim, m);
    mk_store(out + dim + 1, l);
  }

  // Any head, one query: a lane two keys, then a lane a vector of values.
  template <class T>
  MK_DEVICE static void walk(const AttentionArgs& a, const Seen& s, int g, const T* keys,
                             const T* values, MkCompute& c) {
    enum { WIDTH = 16 / sizeof(T) };
    const int head = s.kv_head * (a.heads / a.kv_heads) + g, dim = a.head_dim;
    float* sums = reinterpret_cast<float*>(c.arena);                       // [warps][dim]
    float* ml = sums + MK_COMPUTE_WARPS * dim;                             // [warps][2]
    float* weights = ml + MK_COMPUTE_WARPS * 2 + mk_warp() * SHARE;        // [warps][SHARE]
    const int begin = s.first / SPLIT * SPLIT, mine = begin + mk_warp() * SHARE;  // its first key
    const int skipped = (s.first - begin) / SHARE;                         // warps without a key
    const float* q = a.q + (int64_t(s.token) * a.heads + head) * dim;
    float scores[SHARE / 32], m = unseen(), l = 0.0f;
    for (int i = 0; i < SHARE / 32; i++) {
      const int j = mine + i * 32 + mk_lane();
      scores[i] = j >= s.first && j < s.end ? score(a, q, keys + s.at(a, j), dim) : unseen();
      m = mk_max(m, scores[i]);
    }
    m = mk_warp_max(m);
    c.sync();  // what was in the arena has been read
    for (int i = 0; i < SHARE / 32; i++) {
      const float weight = scores[i] == unseen() ? 0.0f : power(mk_add(scores[i], -m));
      weights[i * 32 + mk_lane()] = weight;
      l = mk_add(l, weight);
    }
    l = mk_warp_sum(l);
    if (mk_lane() == 0) {
      ml[mk_warp() * 2] = m;
      ml[mk_warp() * 2 + 1] = l;
    }
    mk_sync_warp();
    const int first = mine > s.first ? mine : s.first, end = least(mine + SHARE, s.end);
    for (int d = mk_lane() * WIDTH; d < dim; d += 32 * WIDTH) {
      float y[WIDTH] = {};
      for (int i = first; i < end; i++) {
        const mk_word4 v = mk_load_coherent16(values + s.at(a, i) + d);
        for (int n = 0; n < WIDTH; n++) y[n] = mk_fma(wide(v, n, values), weights[i - mine], y[n]);
      }
      for (int n = 0; n < WIDTH; n++) sums[mk_warp() * dim + d + n] = y[n];
    }
    c.sync();
    const int64_t row = (int64_t(s.token) * a.splits + s.place) * a.heads + head;
    const int warps = (s.end - 1 - begin) / SHARE + 1 - skipped;
    float* partial = a.partial + row * (dim + 16);
    for (int d = mk_thread() * 4; d < dim; d += MK_COMPUTERS * 4)
      join(partial, dim, sums + skipped * dim, dim, ml + skipped * 2, 2, d, warps);
  }
  template <class T>
  MK_DEVICE static float score(const AttentionArgs& a, const float* q, const T* key, int dim) {
    enum { WIDTH = 16 / sizeof(T) };
    float sum[4] = {0, 0, 0, 0};
    for (int d = 0; d < dim; d += WIDTH) {
      const mk_word4 k = mk_load_coherent16(key + d);
      for (int i = 0; i < WIDTH; i += 4) {
        const mk_float4 x = mk_load_coherent4(q + d + i);
        for (int n = 0; n < 4; n++) sum[n] = mk_fma(wide(k, i + n, key), x.v[n], sum[n]);
      }
    }
    return mk_mul(mk_add(mk_add(sum[0], sum[1]), mk_add(sum[2], sum[3])), a.scale);
  }
  MK_DEVICE static float wide(const mk_word4& x, int i, const mk_bf16*) {
    return mk_widen(static_cast<mk_bf16>(x.v[i / 2] >> i % 2 * 16));
  }
  MK_DEVICE static float wide(const mk_word4& x, int i, const float*) { return mk_float(x.v[i]); }
};
