// The gemm body: 16 output columns for a block of tokens.
// Order: MkProduct's; the residual is added last.
struct gemm : MkProductBody {
  typedef MkProduct P;

  MK_DEVICE static int tiles(const GemmArgs& a) { return (a.n + P::ROWS - 1) / P::ROWS; }
  MK_DEVICE static void begin(const GemmArgs& a, const MkRun& run, MkLoad& ring) {
    P::begin(run, tiles(a), ring);
  }
  MK_DEVICE static MkRows rows(const GemmArgs& a, int tile, int lower, const MkLoad& ring) {
    const int first = (tile - P::first_tile(ring)) * P::ROWS + lower * P::HALF;
    return {a.w, a.place_of_w, a.k, first, a.n - first};
  }

  MK_DEVICE static void early(const GemmArgs& a, const MkRun& run, const MkStage& s) {
    P::plan(s, run, a.count, a.k, a.block, tiles(a));
    P::expect(s, a.norm_w, a.k);
  }

  MK_DEVICE static MkInput input(const GemmArgs& a, const MkRun& run, const MkStage& s) {
    MkInput in = P::input(a.x, a.k, s, a.norm_w, a.norm_eps);
    if (a.norm_y && run.first == P::first_tile(s.notes))
      in.norm_y = a.norm_y + int64_t(P::first_token(s.notes)) * a.k;
    return in;
  }

  // A lane has one output column and four tokens, of which a smaller step has fewer.
  enum { LANE = MK_ROWS < 4 ? MK_ROWS : 4 };
  static constexpr bool has_ahead = true;
  struct Place {
    int column, token, tokens;
    MK_DEVICE Place(const GemmArgs& a, int tile, const MkStore& s) {
      const int first = P::first_of(s) + mk_lane() % 2 * 4;
      column = (tile - P::first_tile(s.notes)) * P::ROWS + mk_lane() / 2;
      token = P::first_token(s.notes) + first;
      tokens = column < a.n ? P::least(s.notes[0] - first, LANE) : 0;
    }
  };
  // loaded: what is added to the product
  MK_DEVICE static void ahead(const GemmArgs& a, int tile, MkStore& s) {
    const Place p(a, tile, s);
    if (p.tokens <= 0 || !a.residual) return;
    int from[LANE];  // in place of a token that is not there, the first one again
    float added[LANE];
    for (int i = 0; i < LANE; i++) from[i] = i < p.tokens ? i * a.n : 0;
    mk_await(added, a.residual + int64_t(p.token) * a.n + p.column, from, *s.guard);
    for (int i = 0; i < LANE; i++) s.loaded[i] = added[i];
  }
  MK_DEVICE static void store(const GemmArgs& a, int tile, const MkStore& s) {
    const Place p(a, tile, s);
    const int64_t at = int64_t(p.token) * a.n + p.column;
    mk_float4 y = P::join(s);
    for (int i = 0; i < LANE && i < p.tokens; i++) {
      if (a.residual) y.v[i] = mk_add(y.v[i], s.loaded[i]);
      mk_store(a.y + at + int64_t(i) * a.n, y.v[i]);
    }
  }
};
