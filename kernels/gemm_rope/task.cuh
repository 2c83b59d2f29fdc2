// The gemm_rope body: 8 rotated pairs of one head for a block of tokens. The product's 16 rows
// are two runs of 8: half-split pairs have one row in each run, interleaved ones are neighbours.
// Order: MkProduct's; the rotated pair (p, q) by c, s is fma(p, c, -(q s)), fma(q, c, p s).
struct gemm_rope : MkProductBody {
  typedef MkProduct P;

  // Where the tile's two runs begin, as columns of its head.
  struct Runs {
    int head, part, first, second;
  };
  MK_DEVICE static Runs runs(const GemmRopeArgs& a, int tile) {
    const int per_head = a.head_dim / P::ROWS;
    return runs(a, tile / per_head, tile % per_head);
  }
  MK_DEVICE static Runs runs(const GemmRopeArgs& a, int head, int part) {
    if (a.half_split) return {head, part, part * P::HALF, a.head_dim / 2 + part * P::HALF};
    return {head, part, part * P::ROWS, part * P::ROWS + P::HALF};
  }
  MK_DEVICE static Runs runs(const GemmRopeArgs& a, int tile, const MkStore& s) {
    if (!P::BLOCKS) return runs(a, tile);
    const MkDivider per_head = {a.head_dim / P::ROWS, static_cast<uint32_t>(s.notes[FACTOR])};
    int part;
    const int head = per_head.divide(tile - P::first_tile(s.notes), part);
    return runs(a, head, part);
  }

  MK_DEVICE static int tiles(const GemmRopeArgs& a) { return a.heads * a.head_dim / P::ROWS; }
  MK_DEVICE static void begin(const GemmRopeArgs& a, const MkRun& run, MkLoad& ring) {
    P::begin(run, tiles(a), ring);
  }
  MK_DEVICE static MkRows rows(const GemmRopeArgs& a, int tile, int lower, const MkLoad& ring) {
    const Runs r = runs(a, tile - P::first_tile(ring));
    return {a.w, a.place_of_w, a.k, r.head * a.head_dim + (lower ? r.second : r.first), P::HALF};
  }

  // notes: [the block's, then each token's position and physical page; last, a divider's factor]
  enum { PLACES = P::BLOCK_NOTES, FACTOR = MK_NOTES - 1 };
  static_assert(PLACES + 2 * P::TOKENS * MK_GROUPS <= FACTOR, "the notes have room");
  MK_DEVICE static void early(const GemmRopeArgs& a, const MkRun& run, const MkStage& s) {
    P::plan(s, run, a.count, a.k, a.block, tiles(a));
    P::expect(s, a.norm_w, a.k);
    if (P::BLOCKS && s.thread == 0)
      s.notes[FACTOR] = static_cast<int32_t>(MkDivider::of(a.head_dim / P::ROWS).factor);
    const int t = s.thread, first = P::BLOCKS ? run.first / tiles(a) * a.block : 0;
    const int tokens = mk_load_immutable(a.count) - first;
    if (t >= tokens || (P::BLOCKS && t >= P::TOKENS * MK_GROUPS)) return;
    const int sequence = mk_load_immutable(a.rows + 2 * (first + t));
    const int position = mk_load_immutable(a.rows + 2 * (first + t) + 1);
    s.notes[PLACES + 2 * t] = position;
    if (!a.y)
      s.notes[PLACES + 1 + 2 * t] =
          mk_load_immutable(a.page_table + sequence * a.pages_per_sequence + position / a.page);
  }

  MK_DEVICE static MkInput input(const GemmRopeArgs& a, const MkRun&, const MkStage& s) {
    return P::input(a.x, a.k, s, a.norm_w, a.norm_eps);
  }

  // A lane has one pair of two tokens. loaded: their cosines, then their sines.
  static constexpr bool has_ahead = true;
  MK_DEVICE static void ahead(const GemmRopeArgs& a, int tile, MkStore& s) {
    const int first = P::first_of(s) + mk_lane() % 4 * 2, part = runs(a, tile, s).part;
    for (int i = 0; i < 2; i++) {
      if (!a.rope || first + i >= s.notes[0]) continue;
      const int position = s.notes[PLACES + 2 * (first + i)];
      const float* angle =
          a.rope + int64_t(position) * a.head_dim + part * P::HALF + mk_lane() / 4;
      s.loaded[i] = mk_load_immutable(angle);
      s.loaded[2 + i] = mk_load_immutable(angle + a.head_dim / 2);
    }
  }
  MK_DEVICE static void store(const GemmRopeArgs& a, int tile, const MkStore& s) {
    const Runs r = runs(a, tile, s);
    const int pair = mk_lane() / 4, first = P::first_of(s) + mk_lane() % 4 * 2;
    const int32_t* places = s.notes + PLACES;
    const int tokens = P::least(s.notes[0] - first, 2);
    const int p_row = a.half_split ? pair : 2 * pair, q_row = a.half_split ? 8 + pair : p_row + 1;
    const mk_float2 ps = P::join(s, p_row), qs = P::join(s, q_row);
    const int p_column = p_row < P::HALF ? r.first + p_row : r.second + p_row - P::HALF;
    const int q_column = q_row < P::HALF ? r.first + q_row : r.second + q_row - P::HALF;
    for (int i = 0; i < 2; i++) {
      if (i >= tokens) break;
      float p = ps.v[i], q = qs.v[i];
      if (a.rope) {
        p = mk_fma(ps.v[i], s.loaded[i], -mk_mul(qs.v[i], s.loaded[2 + i]));
        q = mk_fma(qs.v[i], s.loaded[i], mk_mul(ps.v[i], s.loaded[2 + i]));
      }
      const int token = first + i;
      if (a.y) {
        const int64_t row = P::first_token(s.notes) + token;
        float* y = a.y + (row * a.heads + r.head) * a.head_dim;
        mk_store(y + p_column, p);
        mk_store(y + q_column, q);
      } else {
        const int position = places[2 * token], page = places[2 * token + 1];
        mk_kv* kept = a.pages + ((int64_t(page) * a.heads + r.head) * a.page + position % a.page) *
                                    a.head_dim;
        keep(kept + p_column, p);
        keep(kept + q_column, q);
      }
    }
  }
  MK_DEVICE static void keep(float* to, float x) { mk_store(to, x); }
  MK_DEVICE static void keep(mk_bf16* to, float x) { mk_store(to, mk_narrow(x)); }
};
