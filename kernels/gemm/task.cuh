// The gemm body: 16 output columns for up to MK_ROWS tokens.
// Order: slices of 2048 bytes of k; a slice's steps of 16 k are shared out to the 8 compute warps,
// each a run of ceil(steps / 8); a warp's even steps go to sum 0, odd ones to sum 1, over all
// slices; then sum 0 + sum 1; then the warps' partials in index order; the residual is added last.
struct gemm : MkBody {
  enum {
    ROWS = 16,                 // weight rows of a tile
    ROW_BYTES = MK_ROW_BYTES,  // 2048, of one weight row in a ring slot
    PITCH = ROW_BYTES + 16,    // shifted by a vector: the rows' banks differ
    SLICE = ROW_BYTES / sizeof(mk_weight),
    PAD = 16 / sizeof(mk_weight),  // likewise between the staged tokens
    TOKENS = 8,
  };
  static_assert(ROWS * PITCH <= MK_SLOT_BYTES, "a slice fits a ring slot");
  static_assert(ROWS * TOKENS <= MK_PARTIAL, "a warp's sums fit its partials");
  static_assert(MK_ROWS <= TOKENS, "one tile of tokens");

  MK_DEVICE static int least(int a, int b) { return a < b ? a : b; }

  MK_DEVICE static void load(const GemmArgs& a, int tile, MkLoad& ring) {
    const int n0 = tile * ROWS, rows = least(ROWS, a.n - n0);
    const int64_t row_bytes = int64_t(a.k) * sizeof(mk_weight);
    for (int k0 = 0; k0 < a.k; k0 += SLICE) {
      const int bytes = least(SLICE, a.k - k0) * sizeof(mk_weight);
      char* slot = ring.claim(rows * bytes);
      ring.rows(slot, PITCH, a.w + int64_t(n0) * a.k + k0, row_bytes, bytes, rows);
      ring.commit();
    }
  }

  MK_DEVICE static void early(const GemmArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  // [TOKENS][k + PAD] in the weights' storage type; rows that no token has stay as they are
  MK_DEVICE static void stage(const GemmArgs& a, const MkRun&, const MkStage& s) {
    s.copy(reinterpret_cast<mk_weight*>(s.buffer), a.k + PAD, a.x, a.k, s.notes[0]);
  }

  MK_DEVICE static void compute(const GemmArgs& a, int, MkCompute& c) {
    float sums[2][4] = {};
    const mk_weight* x = reinterpret_cast<const mk_weight*>(c.staged);
    for (int k0 = 0; k0 < a.k; k0 += SLICE) {
      const mk_weight* w = reinterpret_cast<const mk_weight*>(c.take());
      const int steps = least(SLICE, a.k - k0) / 16, share = (steps + 7) / 8;
      const int first = mk_warp() * share, end = least(first + share, steps);
      multiply(sums, w, x + k0, a.k + PAD, first, end);
      c.give_back();
    }
    const int row = mk_lane() / 4, token = mk_lane() % 4 * 2;
    for (int i = 0; i < 4; i++)  // [ROWS][TOKENS]
      c.partial[(row + i / 2 * 8) * TOKENS + token + i % 2] = mk_add(sums[0][i], sums[1][i]);
  }

  MK_DEVICE static void multiply(float (&sums)[2][4], const mk_bf16* w, const mk_bf16* x,
                                 int x_pitch, int first, int end) {
    const int lane = mk_lane();
    const char* w_row = reinterpret_cast<const char*>(w) + lane % 16 * PITCH + lane / 16 * 16;
    const mk_bf16* x_row = x + lane % 8 * x_pitch;
#pragma unroll 4
    for (int step = first; step < end; step += 2) {
      const bool pair = step + 1 < end;
      uint32_t b[4], even[4], odd[4];  // b: the two steps' halves of 8 k
      mk_load_matrix4(b, x_row + step * 16 + (pair ? lane / 8 : lane / 8 % 2) * 8);
      mk_load_matrix4(even, w_row + step * 32);
      mk_mma(sums[0], even, b[0], b[1]);
      if (pair) {
        mk_load_matrix4(odd, w_row + step * 32 + 32);
        mk_mma(sums[1], odd, b[2], b[3]);
      }
    }
  }

  // float32 weights: the same sums by fused multiply-adds in the order of k
  MK_DEVICE static void multiply(float (&sums)[2][4], const float* w, const float* x, int x_pitch,
                                 int first, int end) {
    const int row = mk_lane() / 4, token = mk_lane() % 4 * 2;
    const int pitch = PITCH / 4;
    for (int k = first * 16; k < end * 16; k++) {
      float(&sum)[4] = sums[(k / 16 - first) & 1];
      for (int i = 0; i < 4; i++)
        sum[i] = mk_fma(w[(row + i / 2 * 8) * pitch + k], x[(token + i % 2) * x_pitch + k], sum[i]);
    }
  }

  // a lane has one output column and four tokens
  MK_DEVICE static void store(const GemmArgs& a, int tile, const MkStore& s) {
    const int column = tile * ROWS + mk_lane() / 2, first = mk_lane() % 2 * 4;
    const int tokens = column < a.n ? least(s.notes[0] - first, 4) : 0;
    const int64_t at = int64_t(first) * a.n + column;
    float added[4];
    for (int i = 0; i < 4; i++)  // all under way before the first is used
      if (a.residual && i < tokens) added[i] = mk_load_coherent(a.residual + at + int64_t(i) * a.n);
    mk_float4 y = partial(s, 0);
    for (int warp = 1; warp < MK_COMPUTE_WARPS; warp++) {
      const mk_float4 more = partial(s, warp);
      for (int i = 0; i < 4; i++) y.v[i] = mk_add(y.v[i], more.v[i]);
    }
    for (int i = 0; i < 4; i++) {
      if (i >= tokens) break;
      if (a.residual) y.v[i] = mk_add(y.v[i], added[i]);
      mk_store(a.y + at + int64_t(i) * a.n, y.v[i]);
    }
  }
  MK_DEVICE static mk_float4 partial(const MkStore& s, int warp) {
    return *reinterpret_cast<const mk_float4*>(s.partials + warp * MK_PARTIAL + mk_lane() * 4);
  }
};
