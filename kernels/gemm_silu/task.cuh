// The gemm_silu body: 16 output columns for up to MK_ROWS tokens, in two parts of 8. A part is one
// product of 8 gate rows and the 8 up rows of the same columns, so that both meet in one lane.
// Order: MkProduct's, for both.
struct gemm_silu : MkProductBody {
  typedef MkProduct P;
  static constexpr int parts = 2;

  MK_DEVICE static int columns(const GemmSiluArgs& a, int part) {  // the last part may have none
    const int columns = P::least(P::HALF, a.n - part * P::HALF);
    return columns > 0 ? columns : 0;
  }

  MK_DEVICE static void load(const GemmSiluArgs& a, int part, MkLoad& ring) {
    const int64_t at = int64_t(part) * P::HALF * a.k;
    P::load(ring, a.w_gate + at, a.w_up + at, columns(a, part), a.k);
  }

  MK_DEVICE static void early(const GemmSiluArgs& a, const MkRun&, const MkStage& s) {
    P::plan(s, a.count, a.k, parts);
  }

  MK_DEVICE static MkInput input(const GemmSiluArgs& a, const MkRun&, const MkStage& s) {
    return P::input(a.x, a.k, s.notes[0]);
  }

  // a lane has one output column and two tokens
  MK_DEVICE static void store(const GemmSiluArgs& a, int part, const MkStore& s) {
    const int row = mk_lane() / 4, column = part * P::HALF + row, first = mk_lane() % 4 * 2;
    if (column >= a.n) return;
    const mk_float2 gate = P::join(s, row), up = P::join(s, P::HALF + row);
    for (int i = 0; i < 2 && first + i < s.notes[0]; i++)
      mk_store(a.y + int64_t(first + i) * a.n + column, P::gated(gate.v[i], up.v[i]));
  }
};
