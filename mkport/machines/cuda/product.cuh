// The matrix product that several ops share: 16 weight rows for up to MK_ROWS tokens. The rows
// stream through the ring, the tokens' activations are staged.
//
// Order: slices of 2048 bytes of k; a slice's steps of 16 k are cut into 8 shares, each a run of
// ceil(steps / 8); a share's even steps go to sum 0, odd ones to sum 1, over all slices; then sum 0
// + sum 1; then the shares' partials in index order.
struct MkProduct {
  enum {
    ROWS = 16,                 // weight rows
    HALF = 8,                  // of them, in a product that takes them from two places
    ROW_BYTES = MK_ROW_BYTES,  // 2048, of one weight row in a chunk
    SHIFT = 16,                // bytes between the rows of a chunk: their banks differ
    SLICE = ROW_BYTES / sizeof(mk_weight),
    PAD = 16 / sizeof(mk_weight),  // likewise between the staged tokens
    TOKENS = 8,
    SHARES = MK_COMPUTE_WARPS,    // of a slice's steps, whose sums are joined in their order
    WARPS = MK_COMPUTE_WARPS / 2,  // that compute a tile
    FULL = SLICE / 16 / SHARES,    // steps of a share in a whole slice
  };
  static_assert(ROWS * (ROW_BYTES + SHIFT) <= MK_CHUNK_BYTES, "a slice fits a chunk");
  static_assert(ROWS * TOKENS <= MK_PARTIAL, "a warp's sums fit its partials");
  static_assert(MK_ROWS <= TOKENS, "one tile of tokens");

  MK_DEVICE static int least(int a, int b) { return a < b ? a : b; }

  // Streams up to 16 rows of k weights, a lane each.
  MK_DEVICE static void load(MkLoad& ring, const mk_weight* w, int rows, int k) {
    stream(ring, w + int64_t(mk_lane()) * k, mk_lane() < rows, rows, k);
  }
  // Streams twice up to 8 rows: `lower` begins at row 8 of the product.
  MK_DEVICE static void load(MkLoad& ring, const mk_weight* upper, const mk_weight* lower, int rows,
                             int k) {
    const int row = mk_lane() % HALF;
    stream(ring, (mk_lane() < HALF ? upper : lower) + int64_t(row) * k,
           mk_lane() < ROWS && row < rows, 2 * rows, k);
  }
  // `w`: this lane's row, if it has one.
  MK_DEVICE static void stream(MkLoad& ring, const mk_weight* w, bool mine, int rows, int k) {
#pragma unroll 1
    for (int k0 = 0; k0 < k; k0 += SLICE) {
      const int bytes = least(SLICE, k - k0) * int(sizeof(mk_weight)), pitch = bytes + SHIFT;
      char* to = ring.claim(ROWS * pitch, rows * bytes);
      if (mine) ring.piece(to + mk_lane() * pitch, w + k0, bytes);
      ring.commit(ROWS * pitch);
    }
  }

  // `tokens` rows of x: [tokens][k + PAD] in the weights' storage type.
  MK_DEVICE static MkInput input(const float* x, int k, int tokens) {
    return {x, k, tokens, k + PAD, nullptr};
  }
  // The plan of a record whose tiles all take the same rows; its number of tokens is notes[0].
  MK_DEVICE static void plan(const MkStage& s, const int32_t* count, int k, int parts = 1) {
    if (s.thread != 0) return;
    const int tokens = mk_load_immutable(count);
    s.notes[0] = tokens;
    *s.plan = {k, tokens, parts, -1, 0, 0, 1, 0, 0, nullptr};
  }

  // A share of a slice `width` wide: steps [first, end) of 16 k.
  struct Share {
    int first, end;
    MK_DEVICE Share(int width, int share) {
      const int steps = width / 16, each = (steps + SHARES - 1) / SHARES;
      first = share * each;
      end = least(first + each, steps);
    }
  };
  // This warp's first share; it has SHARES / WARPS, side by side.
  MK_DEVICE static int first_share() { return mk_warp() % WARPS * (SHARES / WARPS); }
  MK_DEVICE static int chunk_bytes(int width) {
    return ROWS * (width * int(sizeof(mk_weight)) + SHIFT);
  }

  // This warp's sums over k, left in its shares' partials: [ROWS][TOKENS]. x: the first of `tokens`
  // staged rows; a row behind the last one gives sums that mean nothing.
  MK_DEVICE static void compute(MkCompute& c, const char* staged, int k, int tokens,
                                float* partials) {
    float sums[SHARES / WARPS][2][4] = {};
    const mk_weight* x = reinterpret_cast<const mk_weight*>(staged);
    int left = k;
#pragma unroll 1
    for (; left >= SLICE; left -= SLICE, x += SLICE) slice(c, sums, SLICE, x, k, tokens);
    if (left > 0) slice(c, sums, left, x, k, tokens);
    const int row = mk_lane() / 4, token = mk_lane() % 4 * 2;
    float* to = partials + first_share() * MK_PARTIAL + row * TOKENS + token;
    for (int n = 0; n < SHARES / WARPS; n++)
      for (int i = 0; i < 2; i++) {
        const mk_float2 y = {{mk_add(sums[n][0][2 * i], sums[n][1][2 * i]),
                              mk_add(sums[n][0][2 * i + 1], sums[n][1][2 * i + 1])}};
        *reinterpret_cast<mk_float2*>(to + n * MK_PARTIAL + i * 8 * TOKENS) = y;
      }
  }
  MK_DEVICE static void slice(MkCompute& c, float (&sums)[SHARES / WARPS][2][4], int width,
                              const mk_weight* x, int k, int tokens) {
    const int pitch = width * int(sizeof(mk_weight)) + SHIFT;
    const mk_weight* w = reinterpret_cast<const mk_weight*>(c.take(ROWS * pitch));
#pragma unroll
    for (int n = 0; n < SHARES / WARPS; n++) {
      const Share s(width, first_share() + n);
      multiply(sums[n], w, pitch, x, k + PAD, tokens - 1, s.first, s.end);
    }
    c.give_back(ROWS * pitch, SHARES / WARPS);
  }
  // The same tile as the other warps' business: past its chunks.
  MK_DEVICE static void pass(MkCompute& c, int k) {
#pragma unroll 1
    for (; k > 0; k -= SLICE) c.pass(chunk_bytes(least(SLICE, k)));
  }

  MK_DEVICE static void multiply(float (&sums)[2][4], const mk_bf16* w, int pitch,
                                 const mk_bf16* x, int x_pitch, int last, int first, int end) {
    const int lane = mk_lane();
    const char* w_at = reinterpret_cast<const char*>(w) + lane % 16 * pitch + lane / 16 * 16 +
                       first * 32;
    const mk_bf16* x_at = x + least(lane % 8, last) * x_pitch + lane / 8 * 8 + first * 16;
    if (end - first == FULL) {  // a whole slice: nothing to ask on the way
      multiply_pairs<FULL / 2>(sums, w_at, x_at);
      return;
    }
    if (end - first == FULL - 2) {  // three quarters of one
      multiply_pairs<FULL / 2 - 1>(sums, w_at, x_at);
      return;
    }
    int step = first;
#pragma unroll 1
    for (; step + 1 < end; step += 2, w_at += 64, x_at += 32)
      multiply_pairs<1>(sums, w_at, x_at);
    if (step >= end) return;
    uint32_t b[4], a[4];  // a last single step; the other half of b is not used
    mk_load_matrix4(b, x_at - lane / 16 * 16);
    mk_load_matrix4(a, w_at);
    mk_mma(sums[0], a, b[0], b[1]);
  }
  template <int PAIRS>  // of steps
  MK_DEVICE static void multiply_pairs(float (&sums)[2][4], const char* w, const mk_bf16* x) {
    uint32_t b[PAIRS][4], even[PAIRS][4], odd[PAIRS][4];  // b: two steps' halves of 8 k
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      mk_load_matrix4(b[i], x + i * 32);
      mk_load_matrix4(even[i], w + i * 64);
      mk_load_matrix4(odd[i], w + i * 64 + 32);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      mk_mma(sums[0], even[i], b[i][0], b[i][1]);
      mk_mma(sums[1], odd[i], b[i][2], b[i][3]);
    }
  }

  // float32 weights: the same sums by fused multiply-adds in the order of k
  MK_DEVICE static void multiply(float (&sums)[2][4], const float* w, int w_pitch, const float* x,
                                 int x_pitch, int last, int first, int end) {
    const int row = mk_lane() / 4, token = mk_lane() % 4 * 2;
    const int pitch = w_pitch / 4;
    for (int k = first * 16; k < end * 16; k++) {
      float(&sum)[4] = sums[(k / 16 - first) & 1];
      for (int i = 0; i < 4; i++)
        sum[i] = mk_fma(w[(row + i / 2 * 8) * pitch + k],
                        x[least(token + i % 2, last) * x_pitch + k], sum[i]);
    }
  }

  // This warp's part of k of rows that did not fit the stage buffer: nobody else of its tile reads
  // them, and the other tile's warps have a place of their own.
  MK_DEVICE static void fetch(const float* x, int k, int rows, char* to) {
#pragma unroll 1
    for (int k0 = 0; k0 < k; k0 += SLICE) {
      const int width = least(SLICE, k - k0);
      const int begin = k0 + Share(width, first_share()).first * 16;
      const int end = k0 + Share(width, first_share() + SHARES / WARPS - 1).end * 16;
#pragma unroll 1
      for (int at = begin + mk_lane() * 4; at < end; at += 32 * 4)
#pragma unroll 1
        for (int row = 0; row < rows; row++)
          MkStage::put(reinterpret_cast<mk_weight*>(to) + row * (k + PAD) + at,
                       mk_load_coherent4(x + int64_t(row) * k + at));
    }
    mk_sync_warp();
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

// All products' tiles, part by part: a slot's rows or everybody's, against what the loader brings.
// Half of the compute warps have the even handovers, half the odd ones, so that one's waits and
// lookups pass while the other is multiplied. A join slot is thus one half's within a record, and a
// half waits for a chunk less than a lap of the ring's barriers behind its last one: a parity is
// never that of another phase. Parts of too many chunks are all one half's.
MK_DEVICE inline void mk_compute_product(const MkBox& box, MkRole& role, MkCompute& c) {
  typedef MkProduct P;
  const MkPlan& plan = box.plan;
  const int parts = plan.parts, count = box.words[MK_RUN + 2] * parts, k = plan.k;
  const int half = mk_warp() / P::WARPS;
  const bool shared = k <= MK_CHUNKS / 2 * P::SLICE;
  int slot = plan.slot;
#pragma unroll 1
  for (int i = 0, part = 1; i < count; i++, part++) {
    const char* x = c.staged;
    int tokens = plan.tokens;
    bool used = true;
    const MkEntry* entry = nullptr;
    if (plan.table >= 0) {
      entry = reinterpret_cast<const MkEntry*>(c.staged + plan.table) + slot;
      tokens = entry->tokens;
      used = tokens > 0;
    }
    const uint32_t tile = role.tile;
    if ((shared ? tile % 2 : 0) == half) {
      const int place = tile % MK_JOIN_SLOTS;
      role.guard.wait(role.shared.join_free + place, (tile / MK_JOIN_SLOTS & 1) ^ 1,
                      MK_WAIT_FREE_JOIN, place);
      if (entry) {
        if (mk_warp() % P::WARPS == 0 && mk_lane() < MK_TAGS)
          role.shared.tags[place][mk_lane()] = entry->tags[mk_lane()];
        const int spare = plan.spare + half * plan.spare_step;
        x += entry->place >= 0 ? entry->place : spare;
        if (used && entry->place < 0)
          P::fetch(plan.x + int64_t(-1 - entry->place) * k, k, tokens, c.arena + spare);
      }
      if (used) P::compute(c, x, k, tokens > 1 ? tokens : 1, role.shared.partials[place][0]);
      mk_sync_warp();  // all lanes have written theirs
      if (mk_lane() == 0)
        for (int n = 0; n < P::SHARES / P::WARPS; n++)
          mk_barrier_arrive(role.shared.joined + place);
    } else if (used) {
      P::pass(c, k);
    }
    role.tile++;
    if (part < parts) continue;
    part = 0;
    slot += plan.step;
    if (slot >= plan.slots) slot -= plan.slots;
  }
}
