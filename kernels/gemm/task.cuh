// The gemm body: 16 output columns for up to MK_ROWS tokens.
// Order: MkProduct's; the residual is added last.
struct gemm : MkProductBody {
  typedef MkProduct P;

  MK_DEVICE static MkRows rows(const GemmArgs& a, int tile, int lower, const MkLoad&) {
    const int first = tile * P::ROWS + lower * P::HALF;
    return {a.w, a.place_of_w, a.k, first, a.n - first};
  }

  MK_DEVICE static void early(const GemmArgs& a, const MkRun&, const MkStage& s) {
    P::plan(s, a.count, a.k);
  }

  MK_DEVICE static MkInput input(const GemmArgs& a, const MkRun&, const MkStage& s) {
    return P::input(a.x, a.k, s.notes[0]);
  }

  // a lane has one output column and four tokens
  MK_DEVICE static void store(const GemmArgs& a, int tile, const MkStore& s) {
    const int column = tile * P::ROWS + mk_lane() / 2, first = mk_lane() % 2 * 4;
    const int tokens = column < a.n ? P::least(s.notes[0] - first, 4) : 0;
    const int64_t at = int64_t(first) * a.n + column;
    float added[4];
    for (int i = 0; i < 4; i++)  // all under way before the first is used
      if (a.residual && i < tokens) added[i] = mk_load_coherent(a.residual + at + int64_t(i) * a.n);
    mk_float4 y = P::join(s);
    for (int i = 0; i < 4; i++) {
      if (i >= tokens) break;
      if (a.residual) y.v[i] = mk_add(y.v[i], added[i]);
      mk_store(a.y + at + int64_t(i) * a.n, y.v[i]);
    }
  }
};
