// The gemm_silu body: 16 output columns for a block of tokens, in two parts of 8. A part is one
// product of 8 gate rows and the 8 up rows of the same columns, so that both meet in one lane.
// Order: MkProduct's, for both.
struct gemm_silu : MkProductBody {
  typedef MkProduct P;
  static constexpr int parts = 2;

  MK_DEVICE static int tiles(const GemmSiluArgs& a) { return (a.n + P::ROWS - 1) / P::ROWS; }
  MK_DEVICE static void begin(const GemmSiluArgs& a, const MkRun& run, MkLoad& ring) {
    P::begin(run, tiles(a), ring);
  }
  MK_DEVICE static MkRows rows(const GemmSiluArgs& a, int part, int lower, const MkLoad& ring) {
    const int first = (part - 2 * P::first_tile(ring)) * P::HALF;
    return {lower ? a.w_up : a.w_gate, lower ? a.place_of_w_up : a.place_of_w_gate, a.k, first,
            a.n - first};
  }

  MK_DEVICE static void early(const GemmSiluArgs& a, const MkRun& run, const MkStage& s) {
    P::plan(s, run, a.count, a.k, a.block, tiles(a), parts);
    P::expect(s, a.norm_w, a.k);
  }

  MK_DEVICE static MkInput input(const GemmSiluArgs& a, const MkRun&, const MkStage& s) {
    return P::input(a.x, a.k, s, a.norm_w, a.norm_eps);
  }

  // a lane has one output column and two tokens
  MK_DEVICE static void store(const GemmSiluArgs& a, int part, const MkStore& s) {
    const int row = mk_lane() / 4, column = (part - 2 * P::first_tile(s.notes)) * P::HALF + row;
    const int first = P::first_of(s) + mk_lane() % 4 * 2;
    if (column >= a.n) return;
    const mk_float2 gate = P::join(s, row), up = P::join(s, P::HALF + row);
    for (int i = 0; i < 2 && first + i < s.notes[0]; i++)
      mk_store(a.y + int64_t(P::first_token(s.notes) + first + i) * a.n + column,
               P::gated(gate.v[i], up.v[i]));
  }
};
