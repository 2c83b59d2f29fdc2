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

  // a lane has one output column and four tokens
  MK_DEVICE static void store(const GemmArgs& a, int tile, const MkStore& s) {
    const int column = (tile - P::first_tile(s.notes)) * P::ROWS + mk_lane() / 2;
    const int first = P::first_of(s) + mk_lane() % 2 * 4;
    const int tokens = column < a.n ? P::least(s.notes[0] - first, 4) : 0;
    const int64_t at = int64_t(P::first_token(s.notes) + first) * a.n + column;
    float added[4] = {};
    int from[4];  // in place of a token that is not there, the first one again
    for (int i = 0; i < 4; i++) from[i] = i < tokens ? i * a.n : 0;
    MkAwait wait(*s.guard);
    mk_float4 y;
    bool late;
#pragma unroll 1
    do {
      late = false;
      if (a.residual && tokens > 0)
        for (int i = 0; i < 4; i++) mk_read(added[i], a.residual + at + from[i]);
      y = P::join(s);  // while these are on their way
      for (int i = 0; i < 4; i++) late |= a.residual && mk_unwritten(added[i]);
    } while (wait.again(late));
    for (int i = 0; i < 4; i++) {
      if (i >= tokens) break;
      if (a.residual) y.v[i] = mk_add(y.v[i], added[i]);
      mk_store(a.y + at + int64_t(i) * a.n, y.v[i]);
    }
  }
};
