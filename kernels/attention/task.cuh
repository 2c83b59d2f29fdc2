// The attention body: one split of one token's keys, for the query heads of one kv head.
// Order for a bfloat16 cache and heads of 64 or 128: the seen keys' blocks of 16 (at absolute
// positions) go to the 8 compute warps in turn. Scores: queries rounded to bfloat16, steps of 16
// columns, even ones to sum 0, odd ones to sum 1, sum 0 + sum 1, times scale. A block's weights
// e^(s - m') join key j with j + 8, then in halves; l' = fma(l, e^(m - m'), their sum);
// acc' = acc * e^(m - m'), then the block's values times its weights, rounded to bfloat16.
// Otherwise: warp w has keys 64 w to 64 w + 63 of the split, a lane two of them, 32 apart. Scores:
// fused multiply-adds, column i to sum i % 4, (0 + 1) + (2 + 3), times scale; weights joined in
// halves; values by fused multiply-adds, keys ascending.
// Both: warps in order by fused multiply-adds with e^(m_w - m). Powers by the GPU's 2^x. Where a
// token sees one split, y = (acc + 0) / l, as attention_combine has it.
//
// For the tensor cores, keys and values of earlier steps come through the ring, a chunk a run of
// positions, up to 64 of a page by one copy; those of this step, which other workers wrote, are put
// into their places there by the warp that reads them.
struct attention : MkBody {
  enum {
    SPLIT = 512,  // keys
    SHARE = SPLIT / MK_COMPUTE_WARPS,  // of them, a warp's where there are no tensor cores
    BLOCK = 16,
    GROUP = 8,    // queries that are multiplied side by side
    CHUNK = 32768,  // bytes of keys and values that come together
    PAD = 4,      // floats between the warps' sums of two queries
    Q_PAD = 8,    // and values between the queries
    ROW = 128,    // bytes: copies leave their positions' heads in columns of so many
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

  // While queries, keys and values are multiplied, which mostly reads the L2 cache, memory would have
  // little to do. Two tiles of each worker are fastest: the cache holds no more than about that.
  enum { NEAR = 2 };
  MK_DEVICE static void near(const AttentionArgs& a, const MkRun& run) {
    if (!streams(a)) return;
    const Places all = Places::of(a);
    const int count = mk_load_immutable(a.count), bytes = a.page * a.head_dim * int(sizeof(mk_kv));
#pragma unroll 1
    for (int i = 0; i < NEAR && i < run.count; i++) {
      const Place p = all.at(run.tile(i));
      if (p.token >= count) break;
      const int sequence = mk_load_immutable(a.rows + 2 * p.token);
      const int position = mk_load_immutable(a.rows + 2 * p.token + 1);
      const Seen s = seen(a, all, p, sequence, position, position);
      const int page = s.block(0) / a.page + mk_lane();  // a lane a page
      if (s.first >= s.end || page * a.page >= s.end) continue;
      const int64_t at = s.at(a, page * a.page);
      mk_prefetch(a.k_pages + at, bytes);
      mk_prefetch(a.v_pages + at, bytes);
    }
  }

  // Positions that a copy brings, all of one page; and where a vector of 16 bytes of one of them lies.
  MK_DEVICE static int copied(const AttentionArgs& a) { return least(a.page & -a.page, 64); }
  MK_DEVICE static int place(int copied, int position, int vector) {
    return vector / 8 * copied * ROW + position * ROW + (vector % 8 ^ position % 8) * 16;
  }

  // A chunk: keys, then values, of `keys` positions, less the copies in which none is seen, or there
  // yet. What else of a copy comes along is not looked at.
  MK_DEVICE static void load(const AttentionArgs& a, int tile, MkLoad& ring) {
    if (!streams(a)) return;
    const Seen s = seen(a, ring, tile);
    const int32_t pages = ring.notes[PAGE];
    ring.notes[PAGE] = page_of(a, ring, ring.next);
    if (s.first >= s.end) return;
    const int keys = chunk_keys(a.head_dim), side = copied(a), copies = keys / side;
    const int bytes = side * a.head_dim * int(sizeof(mk_kv));
    const int old = least(s.end, s.fresh), start = s.first / keys * keys;
    const Divider page_keys = Divider::of(a.page);
    const int first_page = s.first / a.page;
#pragma unroll 1
    for (int g = 0; g < a.heads / a.kv_heads; g += GROUP)
#pragma unroll 1
      for (int chunk = start; chunk < s.end; chunk += keys) {
        const int low = most(s.first, chunk), high = least(old, chunk + keys);
        const int count = high > low ? (high + side - 1) / side - low / side : 0;
        char* to = ring.claim(CHUNK, count * 2 * bytes);
        if (mk_has_box(ROW)) {  // a lane a copy of keys, or of values
          const int lane = mk_lane(), at = chunk + lane % copies * side;
          const int64_t row = row_of(a, s, page_keys, pages, first_page, at);
          if (lane < 2 * copies && count > 0 && at + side > low && at < high)
            ring.box(to + lane * bytes, lane < copies ? a.place_of_k_pages : a.place_of_v_pages, 0,
                     int32_t(row));
        } else {
#pragma unroll 1
          for (int i = 0; i < 2 * copies; i++) {
            const int at = chunk + i % copies * side;
            const int64_t row = row_of(a, s, page_keys, pages, first_page, at);
            if (count > 0 && at + side > low && at < high)
              copy(ring, to + i * bytes, (i < copies ? a.k_pages : a.v_pages) + row * a.head_dim, side,
                   a.head_dim);
          }
        }
        ring.commit(CHUNK);
      }
  }
  // The row of the cache, of head_dim elements, where position j is; all lanes take part.
  MK_DEVICE static int64_t row_of(const AttentionArgs& a, const Seen& s, const Divider& page_keys,
                                  int32_t pages, int first_page, int j) {
    int rest;
    const int number = page_keys.divide(j, rest) - first_page;
    const int64_t page = mk_shuffle(pages, number & 31);
    return (page * a.kv_heads + s.kv_head) * a.page + rest;
  }
  MK_DEVICE static void copy(MkLoad& ring, char* to, const mk_kv* from, int side, int head_dim) {
    const int across = head_dim * int(sizeof(mk_kv)) / 16;
#pragma unroll 1
    for (int i = mk_lane(); i < side * across; i += 32)
      ring.piece(to + place(side, i / across, i % across),
                 reinterpret_cast<const char*>(from) + i * 16, 16);
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

  // Tensor cores: 16 keys times 8 queries, then 16 columns of values times 8 queries. Where a lane
  // finds its rows of 8 x 8 matrices of a block: of one of its halves, from a vector of 8 columns on.
  struct Rows {
    const char* at;
    int turn;   // of a vector's place, by row
    int pitch;  // bytes from 64 columns to the next
    MK_DEVICE Rows(const char* block, int copied, int lane, int half, int vector)
        : at(block + (half * 8 + lane % 8) * ROW),
          turn((lane % 8 ^ vector) * 16),
          pitch(copied * ROW) {}
    MK_DEVICE const char* columns(int i) const {  // 16 i to 16 i + 15
      return at + i / 4 * pitch + (i % 4 * 32 ^ turn);
    }
  };

  // A warp's sums so far: a lane has columns 16 i + lane / 4 (+ 8 from sums[][2] on) of queries
  // 2 (lane % 4) and the next.
  template <int DIM>
  struct State {
    float sums[DIM / 16][4];
    float m[2], l[2];
    int lane;

    MK_DEVICE void begin() {
      lane = mk_thread_here() % 32;  // not kept in a register through all other ops
#pragma unroll
      for (int i = 0; i < DIM / 16; i++)
        for (int j = 0; j < 4; j++) sums[i][j] = 0.0f;
      m[0] = m[1] = unseen();
      l[0] = l[1] = 0.0f;
    }

    // of keys lane / 4, and 8 more from s[2] on; those in [low, high) are seen
    MK_DEVICE void score(float (&s)[4], const mk_bf16* queries,
                         const char* block, int copied, float scale, int low, int high) const {
      const Rows keys(block, copied, lane, lane / 8 % 2, lane / 16);
      float odd[4] = {0, 0, 0, 0};
      uint32_t x[DIM / 16][4], q[DIM / 32][4];  // q: two steps' halves of 8 columns
      for (int i = 0; i < 4; i++) s[i] = 0.0f;
#pragma unroll
      for (int i = 0; i < DIM / 32; i++) {
        mk_load_matrix4(x[2 * i], keys.columns(2 * i));
        mk_load_matrix4(x[2 * i + 1], keys.columns(2 * i + 1));
        mk_load_matrix4(q[i], queries + lane % 8 * (DIM + Q_PAD) + lane / 8 * 8 + i * 32);
      }
#pragma unroll
      for (int i = 0; i < DIM / 32; i++) {
        mk_mma(s, x[2 * i], q[i][0], q[i][1]);
        mk_mma(odd, x[2 * i + 1], q[i][2], q[i][3]);
      }
      for (int i = 0; i < 4; i++) s[i] = mk_mul(mk_add(s[i], odd[i]), scale);
      if (low <= 0 && high >= BLOCK) return;
      for (int i = 0; i < 4; i++) {
        const int key = lane / 4 + i / 2 * 8;
        if (key < low || key >= high) s[i] = unseen();
      }
    }

    // scores become weights; `rescale` is the factor of what was added before them
    MK_DEVICE void soften(float (&s)[4], float (&rescale)[2]) {
      float top[2], sum[2];
      for (int i = 0; i < 2; i++) top[i] = mk_max(s[i], s[i + 2]);
#pragma unroll
      for (int mask = 16; mask >= 4; mask /= 2)
        for (int i = 0; i < 2; i++) top[i] = mk_max(top[i], mk_shuffle_xor(top[i], mask));
      for (int i = 0; i < 2; i++) {
        top[i] = mk_max(m[i], top[i]);
        rescale[i] = power(mk_add(m[i], -top[i]));
        m[i] = top[i];
        for (int j = i; j < 4; j += 2) s[j] = power(mk_add(s[j], -top[i]));
        sum[i] = mk_add(s[i], s[i + 2]);
      }
#pragma unroll
      for (int mask = 16; mask >= 4; mask /= 2)
        for (int i = 0; i < 2; i++) sum[i] = mk_add(sum[i], mk_shuffle_xor(sum[i], mask));
      for (int i = 0; i < 2; i++) l[i] = mk_fma(l[i], rescale[i], sum[i]);
    }

    // memory that no token sees may hold anything
    MK_DEVICE void add_values(const float (&weights)[4], const float (&rescale)[2], const char* block,
                              int copied, int low, int high) {
      const Rows values(block, copied, lane, lane / 16, lane / 8 % 2);
      uint32_t v[DIM / 16][4];  // of keys 2 (lane % 4) and the next, and 8 more from [2] on
#pragma unroll
      for (int i = 0; i < DIM / 16; i++) mk_load_turned4(v[i], values.columns(i));
      const uint32_t w0 = mk_transpose(mk_narrow2(weights[0], weights[1]));
      const uint32_t w1 = mk_transpose(mk_narrow2(weights[2], weights[3]));
      if (low > 0 || high < BLOCK) {
        uint32_t seen[2];
        for (int j = 0; j < 2; j++) {
          const int key = lane % 4 * 2 + j * 8;
          seen[j] = (key >= low && key < high ? 0xffffu : 0) |
                    (key + 1 >= low && key + 1 < high ? 0xffff0000u : 0);
        }
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
          for (int j = 0; j < 4; j++) v[i][j] &= seen[j / 2];
      }
#pragma unroll
      for (int i = 0; i < DIM / 16; i++) {
        for (int j = 0; j < 4; j++) sums[i][j] = mk_mul(sums[i][j], rescale[j % 2]);
        mk_mma(sums[i], v[i], w0, w1);
      }
    }

    // to a warp's part of the arena: [GROUP][DIM + PAD], and (m, l) [GROUP][2]
    MK_DEVICE void leave(float* out, float* out_m) const {
      const int query = lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < DIM / 16; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          out[(query + j % 2) * (DIM + PAD) + i * 16 + j / 2 * 8 + lane / 4] = sums[i][j];
      if (lane >= 4) return;
      for (int i = 0; i < 2; i++) {
        out_m[(query + i) * 2] = m[i];
        out_m[(query + i) * 2 + 1] = l[i];
      }
    }
  };

  // A query a warp; those that are not there are 0.
  template <int DIM>
  MK_DEVICE static const float* query(const AttentionArgs& a, int token, int kv_head, int group,
                                      int g0) {
    static_assert(GROUP == MK_COMPUTE_WARPS, "a query for each warp");
    const int row = g0 + mk_warp(), at = mk_lane() * 4, head = kv_head * group + row;
    return row < group && at < DIM ? a.q + (int64_t(token) * a.heads + head) * DIM + at : nullptr;
  }

  enum { EARLY = MK_ROWS == 1 };  // more tokens have other tiles meanwhile, and need the registers
  // for up to GROUP queries of the group, from query g0 on
  template <int DIM>
  MK_DEVICE static void multiply(const AttentionArgs& a, const Seen& s, int tile, int g0,
                                 MkCompute& c) {
    enum { KEYS = CHUNK / 4 / DIM };
    const int group = c.notes[QUERIES], count = least(group - g0, GROUP);
    const int head = s.kv_head * group + g0, blocks = s.blocks(), side = copied(a);
    float* sums = reinterpret_cast<float*>(c.arena);  // [warps][GROUP][DIM + PAD]
    float* ml = sums + MK_COMPUTE_WARPS * GROUP * (DIM + PAD);  // [warps][GROUP][2]
    mk_bf16* q = reinterpret_cast<mk_bf16*>(ml + MK_COMPUTE_WARPS * GROUP * 2);  // [GROUP][DIM + Q_PAD]
    mk_float4 x = c.ahead;
    const float* from = query<DIM>(a, s.token, s.kv_head, group, g0);
    // a single token's own key and value are on their way while its queries come
    const bool own = EARLY && mk_warp() == (blocks - 1) % MK_COMPUTE_WARPS && s.fresh < s.end;
    mk_word4 newest = {};
    if (own) newest = written<DIM>(a, s, s.end - 1);
    bool there = g0 == 0 && c.ahead_of == tile;  // unless it came too early
    MkAwait wait(*c.ring.guard);
#pragma unroll 1
    do {
      if (!there) x = {{0, 0, 0, 0}};
      if (!there && from) mk_read(x, from);
      there = !mk_unwritten(x);
    } while (wait.again(!there));
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
      const int at = i * BLOCK;
      char* keys = c.take(CHUNK) + at / side * side * DIM * 2 + at % side * ROW;
      char* values = keys + CHUNK / 2;
      const bool patched = j + BLOCK > s.fresh;
      if (patched) patch<DIM>(a, s, j, keys, values, newest);
      const int low = s.first - j, high = s.end - j;
      float weights[4], rescale[2];
      state.score(weights, q, keys, side, a.scale, low, high);
      state.soften(weights, rescale);
      state.add_values(weights, rescale, values, side, low, high);
      if (patched) mk_fence_async();  // the copy engine will write here next
      c.give_back(CHUNK);
    }
    c.ahead_of = c.next;  // on its way while the sums are joined
    c.ahead = {{0, 0, 0, 0}};
    if (c.next >= 0) {
      const Place p = places(a, c).at(c.next);
      const float* ahead = query<DIM>(a, p.token, p.kv_head, group, 0);
      if (p.token < c.notes[0] && ahead) mk_read(c.ahead, ahead);
    }
    if (mk_warp() < blocks)
      state.leave(sums + mk_warp() * GROUP * (DIM + PAD), ml + mk_warp() * GROUP * 2);
    c.sync();
    float* out = out_of(a, s, head, DIM);
    const int pitch = a.y ? DIM : DIM + 16;
#pragma unroll 1
    for (int i = mk_thread() * 4; i < count * DIM; i += MK_COMPUTERS * 4)
      join(a, out + i / DIM * pitch, DIM, sums + i / DIM * (DIM + PAD), GROUP * (DIM + PAD),
           ml + i / DIM * 2, GROUP * 2, i % DIM, least(blocks, MK_COMPUTE_WARPS));
  }
  // A head's row of partial, or of y.
  MK_DEVICE static float* out_of(const AttentionArgs& a, const Seen& s, int head, int dim) {
    if (a.y) return a.y + (int64_t(s.token) * a.heads + head) * dim;
    return a.partial + ((int64_t(s.token) * a.splits + s.place) * a.heads + head) * (dim + 16);
  }
  // Of position i a vector of 16 bytes, a lane each, that was written in this step: of its key, then
  // of its value.
  template <int DIM>
  MK_DEVICE static mk_word4 written(const AttentionArgs& a, const Seen& s, int i) {
    enum { VECTORS = DIM / 8 };
    const int lane = mk_lane();
    const mk_kv* from = lane < VECTORS ? a.k_pages : a.v_pages;
    mk_word4 x = {};
    if (lane < 2 * VECTORS) x = mk_load_coherent16(from + s.at(a, i) + lane % VECTORS * 8);
    return x;
  }
  // This step's keys and values of the block at position j, which no copy brings; `newest`, if EARLY,
  // are those of the last position that is seen.
  template <int DIM>
  MK_DEVICE static void patch(const AttentionArgs& a, const Seen& s, int j, char* keys,
                              char* values, const mk_word4& newest) {
    enum { VECTORS = DIM / 8 };
    const int lane = mk_lane(), end = least(s.end, j + BLOCK);
    char* to = lane < VECTORS ? keys : values;
#pragma unroll 1
    for (int i = most(s.fresh, j); i < end; i++) {
      const mk_word4 x = EARLY && i == s.end - 1 ? newest : written<DIM>(a, s, i);
      if (lane < 2 * VECTORS)
        *reinterpret_cast<mk_word4*>(to + place(copied(a), i - j, lane % VECTORS)) = x;
    }
    mk_sync_warp();
  }

  // Four columns, from d on, of the warps' sums to a row of partial, of which the first thread also
  // has m and l; or over l to a row of y. This runs once a tile: instructions that must be fetched
  // take longer to come than these to run, so its loops are not unrolled.
  MK_DEVICE static void join(const AttentionArgs& a, float* out, int dim, const float* sums,
                             int pitch, const float* ml, int ml_pitch, int d, int warps) {
    float m = unseen(), l = 0.0f;
    mk_float4 y = {{0, 0, 0, 0}};
#pragma unroll 1
    for (int warp = 0; warp < warps; warp++) m = mk_max(m, ml[warp * ml_pitch]);
#pragma unroll 1
    for (int warp = 0; warp < warps; warp++, sums += pitch, ml += ml_pitch) {
      const float factor = power(mk_add(ml[0], -m));
      const mk_float4 x = *reinterpret_cast<const mk_float4*>(sums + d);
      for (int i = 0; i < 4; i++) y.v[i] = mk_fma(x.v[i], factor, y.v[i]);
      l = mk_fma(ml[1], factor, l);
    }
    if (a.y)
      for (int i = 0; i < 4; i++) y.v[i] = mk_div(mk_add(y.v[i], 0.0f), l);
    mk_store(reinterpret_cast<mk_float4*>(out + d), y);
    if (a.y || d != 0) return;
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
      scores[i] = j >= s.first && j < s.end ? score(a, q, keys + s.at(a, j), dim, c) : unseen();
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
    const int warps = (s.end - 1 - begin) / SHARE + 1 - skipped;
    float* out = out_of(a, s, head, dim);
    for (int d = mk_thread() * 4; d < dim; d += MK_COMPUTERS * 4)
      join(a, out, dim, sums + skipped * dim, dim, ml + skipped * 2, 2, d, warps);
  }
  template <class T>
  MK_DEVICE static float score(const AttentionArgs& a, const float* q, const T* key, int dim,
                               const MkCompute& c) {
    enum { WIDTH = 16 / sizeof(T) };
    float sum[4] = {0, 0, 0, 0};
    for (int d = 0; d < dim; d += WIDTH) {
      const mk_word4 k = mk_load_coherent16(key + d);
      for (int i = 0; i < WIDTH; i += 4) {
        mk_float4 x[1];
        mk_await(x, q + d + i, {0}, *c.ring.guard);
        for (int n = 0; n < 4; n++) sum[n] = mk_fma(wide(k, i + n, key), x[0].v[n], sum[n]);
      }
    }
    return mk_mul(mk_add(mk_add(sum[0], sum[1]), mk_add(sum[2], sum[3])), a.scale);
  }
  MK_DEVICE static float wide(const mk_word4& x, int i, const mk_bf16*) {
    return mk_widen(static_cast<mk_bf16>(x.v[i / 2] >> i % 2 * 16));
  }
  MK_DEVICE static float wide(const mk_word4& x, int i, const float*) { return mk_float(x.v[i]); }
};
