// The matrix product that several ops share: 16 weight rows for up to MK_ROWS tokens. The rows
// stream through the ring, the tokens' activations are staged.
//
// Order: slices of 2048 bytes of k; a slice's steps of 16 k are shared out to the 8 compute warps,
// each a run of ceil(steps / 8); a warp's even steps go to sum 0, odd ones to sum 1, over all
// slices; then sum 0 + sum 1; then the warps' partials in index order.
struct MkProduct {
  enum {
    ROWS = 16,                 // weight rows
    HALF = 8,                  // of them, in a product that takes them from two places
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

  // Streams up to 16 rows of k weights.
  MK_DEVICE static void load(MkLoad& ring, const mk_weight* w, int rows, int k) {
    const int64_t row_bytes = int64_t(k) * sizeof(mk_weight);
    for (int k0 = 0; k0 < k; k0 += SLICE) {
      const int bytes = least(SLICE, k - k0) * sizeof(mk_weight);
      char* slot = ring.claim(rows * bytes);
      ring.rows(slot, PITCH, w + k0, row_bytes, bytes, rows);
      ring.commit();
    }
  }
  // Streams twice up to 8 rows: `lower` begins at row 8 of the product.
  MK_DEVICE static void load(MkLoad& ring, const mk_weight* upper, const mk_weight* lower, int rows,
                             int k) {
    const int64_t row_bytes = int64_t(k) * sizeof(mk_weight);
    for (int k0 = 0; k0 < k; k0 += SLICE) {
      const int bytes = least(SLICE, k - k0) * sizeof(mk_weight);
      char* slot = ring.claim(2 * rows * bytes);
      ring.rows(slot, PITCH, upper + k0, row_bytes, bytes, rows);
      ring.rows(slot + HALF * PITCH, PITCH, lower + k0, row_bytes, bytes, rows);
      ring.commit();
    }
  }

  // Stages `tokens` rows of x: [MK_ROWS][k + PAD] in the weights' storage type. Rows that no token
  // has stay as they are.
  MK_DEVICE static void stage(const MkStage& s, const float* x, int k, int tokens) {
    s.copy(reinterpret_cast<mk_weight*>(s.buffer), k + PAD, x, k, tokens);
  }

  // This warp's sums over k, left in its partials: [ROWS][TOKENS]. x: the first of `tokens` staged
  // rows; a row behind the last one gives sums that mean nothing.
  MK_DEVICE static void compute(MkCompute& c, const char* staged, int k, int tokens = MK_ROWS) {
    float sums[2][4] = {};
    const mk_weight* x = reinterpret_cast<const mk_weight*>(staged);
    for (int k0 = 0; k0 < k; k0 += SLICE) {
      const mk_weight* w = reinterpret_cast<const mk_weight*>(c.take());
      const int steps = least(SLICE, k - k0) / 16, share = (steps + 7) / 8;
      const int first = mk_warp() * share, end = least(first + share, steps);
      multiply(sums, w, x + k0, k + PAD, tokens - 1, first, end);
      c.give_back();
    }
    const int row = mk_lane() / 4, token = mk_lane() % 4 * 2;
    for (int i = 0; i < 4; i++)
      c.partial[(row + i / 2 * 8) * TOKENS + token + i % 2] = mk_add(sums[0][i], sums[1][i]);
  }

  MK_DEVICE static void multiply(float (&sums)[2][4], const mk_bf16* w, const mk_bf16* x,
                                 int x_pitch, int last, int first, int end) {
    const int lane = mk_lane();
    const char* w_row = reinterpret_cast<const char*>(w) + lane % 16 * PITCH + lane / 16 * 16;
    const mk_bf16* x_row = x + least(lane % 8, last) * x_pitch;
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
                                 int last, int first, int end) {
    const int row = mk_lane() / 4, token = mk_lane() % 4 * 2;
    const int pitch = PITCH / 4;
    for (int k = first * 16; k < end * 16; k++) {
      float(&sum)[4] = sums[(k / 16 - first) & 1];
      for (int i = 0; i < 4; i++)
        sum[i] = mk_fma(w[(row + i / 2 * 8) * pitch + k],
                        x[least(token + i % 2, last) * x_pitch + k], sum[i]);
    }
  }

  // The joined sums of row lane / 2: tokens 4 (lane % 2) and the next three.
  MK_DEVICE static mk_float4 join(const MkStore& s) {
    mk_float4 y = partial(s, 0);
    for (int warp = 1; warp < MK_COMPUTE_WARPS; warp++) {
      const mk_float4 more = partial(s, warp);
      for (int i = 0; i < 4; i++) y.v[i] = mk_add(y.v[i], more.v[i]);
    }
    return y;
  }
  MK_DEVICE static mk_float4 partial(const MkStore& s, int warp) {
    return *reinterpret_cast<const mk_float4*>(s.partials + warp * MK_PARTIAL + mk_lane() * 4);
  }

  // The joined sums of a row: tokens 2 (lane % 4) and the next.
  MK_DEVICE static mk_float2 join(const MkStore& s, int row) {
    const float* at = s.partials + row * TOKENS + mk_lane() % 4 * 2;
    mk_float2 y = *reinterpret_cast<const mk_float2*>(at);
    for (int warp = 1; warp < MK_COMPUTE_WARPS; warp++) {
      const mk_float2 more = *reinterpret_cast<const mk_float2*>(at + warp * MK_PARTIAL);
      for (int i = 0; i < 2; i++) y.v[i] = mk_add(y.v[i], more.v[i]);
    }
    return y;
  }

  // The gated half of a feed-forward: silu(gate) up, silu(x) = x / (1 + 2^(-x log2 e)).
  MK_DEVICE static float gated(float gate, float up) {
    const float rest = mk_exp2(mk_mul(gate, -1.44269504f));
    return mk_mul(mk_div(gate, mk_add(1.0f, rest)), up);
  }
};
