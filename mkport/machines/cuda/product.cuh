// The matrix product that several ops share: 16 weight rows for up to 8 tokens, or for a block of
// up to MK_GROUPS groups of 8. The rows stream through the ring, the tokens' activations are staged.
//
// Order: slices of 2048 bytes of k; a slice's steps of 16 k are cut into 8 shares, each a run of
// ceil(steps / 8); a share's even steps go to sum 0, odd ones to sum 1, over all slices; then sum 0
// + sum 1; then the shares' partials in index order.
struct MkProduct {
  enum {
    ROWS = 16,                 // weight rows
    HALF = 8,                  // of them, in a product that takes them from two places
    SLICE = MK_ROW_BYTES / sizeof(mk_weight),  // of k: 2048 bytes of a weight row
    PAD = 16 / sizeof(mk_weight),  // between the staged tokens: their banks differ
    TOKENS = 8,
    PARTS = 16,                // of a record that the loader has in mind, a pair of lanes each
    SHARES = MK_COMPUTE_WARPS,   // of a slice's steps, a warp's each
    FULL = SLICE / 16 / SHARES,  // steps of a share in a whole slice
  };
  static_assert(ROWS * MK_ROW_BYTES <= MK_CHUNK_BYTES, "a slice fits a chunk");
  static_assert(ROWS * TOKENS <= MK_PARTIAL, "a warp's sums fit its partials");

  MK_DEVICE static int least(int a, int b) { return a < b ? a : b; }

  // Streams up to PARTS parts: lanes 2 i and 2 i + 1 know part i's upper and lower 8 rows, a half of
  // each of its chunks.
  MK_DEVICE static void stream(MkLoad& ring, const MkRows& rows, int parts) {
#pragma unroll 1
    for (int i = 0; i < parts && !ring.ring.guard->dead; i++) {
      const int k = mk_shuffle(rows.k, 2 * i);
      const int half = chunk_bytes(k) / 2, lower = mk_lane() % 2 * half;
      if (mk_has_box(k * int(sizeof(mk_weight)))) {
#pragma unroll 1
        for (int k0 = 0; k0 < k; k0 += SLICE) {
          char* to = ring.claim(2 * half, 2 * half);
          if (mk_lane() / 2 == i) ring.box(to + lower, rows.place, k0, int32_t(rows.first));
          ring.commit(2 * half);
        }
      } else {
        const MkRows mine = rows.of(2 * i + mk_lane() % 2);
#pragma unroll 1
        for (int k0 = 0; k0 < k; k0 += SLICE) stream(ring, mine, k0, half);
      }
    }
  }
  // A slice of rows that no box brings: a lane vectors of its half.
  MK_DEVICE static void stream(MkLoad& ring, const MkRows& rows, int k0, int half) {
    const int count = rows.count > 0 ? least(rows.count, HALF) : 0;
    const int vectors = least(SLICE, rows.k - k0) * int(sizeof(mk_weight)) / 16;
    char* to = ring.claim(2 * half, (count + mk_shuffle_xor(count, 1)) * vectors * 16);
    to += mk_lane() % 2 * half;
#pragma unroll 1
    for (int i = mk_lane() / 2; i < count * vectors; i += 16) {
      const int row = i / vectors, vector = i % vectors;
      const mk_weight* from = rows.w + (rows.first + row) * rows.k + k0;
      ring.piece(to + mk_box_place(row, vector), reinterpret_cast<const char*>(from) + vector * 16,
                 16);
    }
    ring.commit(2 * half);
  }
  // Of a product over k, all alike: a last slice that is shorter fills its chunk in part.
  MK_DEVICE static int chunk_bytes(int k) {
    return 2 * mk_box_bytes(least(SLICE, k) * int(sizeof(mk_weight)));
  }

  // `tokens` rows of x: [tokens][k + PAD] in the weights' storage type.
  MK_DEVICE static MkInput input(const float* x, int k, int tokens, const float* norm_w = nullptr,
                                 float norm_eps = 0.0f) {
    return {x, k, tokens, k + PAD, -1, norm_w, norm_eps};
  }
  MK_DEVICE static MkInput input(const float* x, int k, const MkStage& s, const float* norm_w,
                                 float norm_eps) {  // of a block
    return input(x + int64_t(first_token(s.notes)) * k, k, s.notes[0], norm_w, norm_eps);
  }
  // Brings a norm's weights near; they are immutable, so before the record's waits.
  MK_DEVICE static void expect(const MkStage& s, const float* norm_w, int k) {
    if (!norm_w) return;
#pragma unroll 1
    for (int i = s.thread * 32; i < k; i += MK_STAGERS * 32) mk_prefetch(norm_w + i);
  }
  // The plan of a record whose tiles all take the same rows; its number of tokens is notes[0].
  MK_DEVICE static void plan(const MkStage& s, const int32_t* count, int k, int parts = 1) {
    if (s.thread != 0) return;
    const int tokens = mk_load_immutable(count);
    s.notes[0] = tokens;
    *s.plan = {k, tokens, parts, -1, 0, 0, 1, 0, nullptr};
  }
  // Likewise of a block of tokens, which has so many tiles; notes: its [tokens, first token, first
  // tile].
  enum { BLOCKS = MK_ROWS > TOKENS, BLOCK_NOTES = BLOCKS ? 3 : 1 };
  MK_DEVICE static void plan(const MkStage& s, const MkRun& run, const int32_t* count, int k,
                             int block, int tiles, int parts = 1) {
    plan(s, count, k, parts);
    if (!BLOCKS || s.thread != 0) return;
    const int number = run.first / tiles, tokens = s.notes[0] - number * block;
    s.notes[0] = tokens < 0 ? 0 : block ? least(tokens, block) : tokens;
    s.notes[1] = number * block;
    s.notes[2] = number * tiles;
    s.plan->tokens = s.notes[0];
  }
  MK_DEVICE static int first_token(const int32_t* notes) { return BLOCKS ? notes[1] : 0; }
  MK_DEVICE static int first_tile(const int32_t* notes) { return BLOCKS ? notes[2] : 0; }
  // The first of the tokens that `store` is given, as one of its block's.
  MK_DEVICE static int first_of(const MkStore& s) { return BLOCKS ? s.group * TOKENS : 0; }
  // The loader's part: `first_tile(ring)` is then the block's.
  MK_DEVICE static void begin(const MkRun& run, int tiles, MkLoad& ring) {
    if (BLOCKS) ring.notes[0] = run.first / tiles * tiles;
  }
  MK_DEVICE static int first_tile(const MkLoad& ring) { return BLOCKS ? ring.notes[0] : 0; }

  // A share of a slice `width` wide: steps [first, end) of 16 k.
  struct Share {
    int first, end;
    MK_DEVICE Share(int width, int share) {
      const int steps = width / 16, each = (steps + SHARES - 1) / SHARES;
      first = share * each;
      end = least(first + each, steps);
    }
  };
  // Where a lane finds 16 weight rows' 16 k of a step, as mk_load_matrix4 wants them.
  struct Weights {
    const char* at;  // the lane's row
    int turn;        // of its vector's place, by row
    MK_DEVICE Weights(const char* chunk, int half) : at(chunk + row(half)), turn(turn_of()) {}
    MK_DEVICE const char* step(int i) const { return at + i / 4 * 1024 + (i % 4 * 32 ^ turn); }
    MK_DEVICE static int row(int half) { return mk_lane() / 8 % 2 * half + mk_lane() % 8 * 128; }
    MK_DEVICE static int turn_of() { return (mk_lane() % 8 ^ mk_lane() / 16) * 16; }
  };
  // What a warp's tiles of one record have in common. A tile is over in less than 1 us, so what it
  // need not find out again is kept in registers.
  struct Walk {
    int k, bytes;  // of a chunk
    int tail;      // k behind the whole slices
    Share last;    // of the tail
    int at[4];     // from a chunk to where the lane loads 4 neighbouring steps
    MK_DEVICE explicit Walk(int width)
        : k(width), bytes(chunk_bytes(width)), tail(width % SLICE), last(width % SLICE, mk_warp()) {
      for (int i = 0; i < 4; i++) at[i] = Weights::row(bytes / 2) + (i * 32 ^ Weights::turn_of());
    }
  };
  // This warp's sums over k. x: the first of `tokens` staged rows; a row behind the last one gives
  // sums that mean nothing.
  MK_DEVICE static void compute(MkCompute& c, const Walk& walk, float (&sums)[2][4],
                                const char* staged, int tokens) {
    const mk_weight* x = reinterpret_cast<const mk_weight*>(staged);
#pragma unroll 1
    for (int left = walk.k; left >= SLICE; left -= SLICE, x += SLICE) {
      const char* w = c.take(walk.bytes);
      multiply(sums, walk, w, x, tokens - 1);
      c.give_back(walk.bytes);
    }
    if (walk.tail == 0) return;
    const char* w = c.take(walk.bytes);
    multiply_tail(sums, walk, w, x, tokens - 1);
    c.give_back(walk.bytes);
  }
  // To the warp's partials: [ROWS][TOKENS].
  MK_DEVICE static void leave(const float (&sums)[2][4], float* partials) {
    const int row = mk_lane() / 4, token = mk_lane() % 4 * 2;
    for (int i = 0; i < 2; i++) {
      const mk_float2 y = {{mk_add(sums[0][2 * i], sums[1][2 * i]),
                            mk_add(sums[0][2 * i + 1], sums[1][2 * i + 1])}};
      *reinterpret_cast<mk_float2*>(partials + (row + i * 8) * TOKENS + token) = y;
    }
  }

  // A whole slice's share: nothing to ask on the way.
  MK_DEVICE static void multiply(float (&sums)[2][4], const Walk& walk, const char* chunk,
                                 const mk_bf16* x, int last) {
    const int first = mk_warp() * FULL;
    multiply_pairs<FULL / 2, 0>(sums, walk, chunk + first / 4 * 1024,
                                x + row_of(walk, last) + first * 16);
  }
  MK_DEVICE static void multiply_tail(float (&sums)[2][4], const Walk& walk, const char* chunk,
                                      const mk_bf16* x, int last) {
    const int first = walk.last.first, end = walk.last.end;
    x += row_of(walk, last) + first * 16;
    if (end - first == FULL - 2) {  // three quarters of a slice
      chunk += first / 4 * 1024;
      if (first % 4 == 0)
        multiply_pairs<FULL / 2 - 1, 0>(sums, walk, chunk, x);
      else
        multiply_pairs<FULL / 2 - 1, 2>(sums, walk, chunk, x);
      return;
    }
    const Weights w(chunk, walk.bytes / 2);
    uint32_t b[4], a[4];  // b: two steps' halves of 8 k
    int step = first;
#pragma unroll 1
    for (; step + 1 < end; step += 2, x += 32) {
      mk_load_matrix4(b, x);
      mk_load_matrix4(a, w.step(step));
      mk_mma(sums[0], a, b[0], b[1]);
      mk_load_matrix4(a, w.step(step + 1));
      mk_mma(sums[1], a, b[2], b[3]);
    }
    if (step >= end) return;
    mk_load_matrix4(b, x - mk_lane() / 16 * 16);  // a last single step: half of it is not used
    mk_load_matrix4(a, w.step(step));
    mk_mma(sums[0], a, b[0], b[1]);
  }
  // From the first staged row to the lane's vector of k, of rows up to the `last`.
  MK_DEVICE static int row_of(const Walk& walk, int last) {
    const int lane = mk_lane();
    return (MK_ROWS > 1 ? least(lane % 8, last) * (walk.k + PAD) : 0) + lane / 8 * 8;
  }
  static_assert(FULL % 4 == 0, "a share of a whole slice begins with a block of 128 bytes");
  template <int PAIRS, int FIRST>  // of steps, from step FIRST of a block of 4 on
  MK_DEVICE static void multiply_pairs(float (&sums)[2][4], const Walk& walk, const char* chunk,
                                       const mk_bf16* x) {
    uint32_t b[PAIRS][4], even[PAIRS][4], odd[PAIRS][4];
    const char* at[4];
#pragma unroll
    for (int i = 0; i < 4; i++) at[i] = chunk + walk.at[i];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      const int step = FIRST + 2 * i;
      mk_load_matrix4(b[i], x + i * 32);
      mk_load_matrix4(even[i], at[step % 4] + step / 4 * 1024);
      mk_load_matrix4(odd[i], at[step % 4 + 1] + step / 4 * 1024);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      mk_mma(sums[0], even[i], b[i][0], b[i][1]);
      mk_mma(sums[1], odd[i], b[i][2], b[i][3]);
    }
  }

  // float32 weights: the same sums by fused multiply-adds in the order of k
  MK_DEVICE static void multiply(float (&sums)[2][4], const Walk& walk, const char* chunk,
                                 const float* x, int last) {
    const int first = mk_warp() * FULL;
    multiply(sums, walk, chunk, x, last, first, first + FULL);
  }
  MK_DEVICE static void multiply_tail(float (&sums)[2][4], const Walk& walk, const char* chunk,
                                      const float* x, int last) {
    multiply(sums, walk, chunk, x, last, walk.last.first, walk.last.end);
  }
  MK_DEVICE static void multiply(float (&sums)[2][4], const Walk& walk, const char* chunk,
                                 const float* x, int last, int first, int end) {
    const int row = mk_lane() / 4, token = mk_lane() % 4 * 2;
    for (int k = first * 16; k < end * 16; k++) {
      float(&sum)[4] = sums[(k / 16 - first) & 1];
      const char* w = chunk + mk_box_place(row, k / 4) + k % 4 * 4;
      for (int i = 0; i < 4; i++)
        sum[i] = mk_fma(*reinterpret_cast<const float*>(w + i / 2 * (walk.bytes / 2)),
                        x[least(token + i % 2, last) * (walk.k + PAD) + k], sum[i]);
    }
  }

  // The same of GROUPS groups of rows: each weight is loaded once for all of them. What groups have
  // that are not there means nothing.
  template <int GROUPS>
  MK_DEVICE static void compute(MkCompute& c, const char* staged, int k, int tokens,
                                float (&sums)[GROUPS][2][4]) {
    const mk_weight* x = reinterpret_cast<const mk_weight*>(staged);
    const int bytes = chunk_bytes(k);
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
      for (int i = 0; i < 8; i++) sums[g][i / 4][i % 4] = 0.0f;
#pragma unroll 1
    for (int left = k; left > 0; left -= SLICE, x += SLICE) {
      const char* w = c.take(bytes);
      const Share s(least(left, SLICE), mk_warp());
      multiply(sums, w, bytes / 2, x, k + PAD, tokens - 1, s.first, s.end);
      c.give_back(bytes);
    }
  }
  // What a pair of steps is multiplied from.
  template <int GROUPS>
  struct Pair {
    uint32_t even[4], odd[4], b[GROUPS][4];
    MK_DEVICE void load(const Weights& w, int step, const mk_bf16* const (&x)[GROUPS], int at) {
      mk_load_matrix4(even, w.step(step));
      mk_load_matrix4(odd, w.step(step + 1));
#pragma unroll
      for (int g = 0; g < GROUPS; g++) mk_load_matrix4(b[g], x[g] + at);
    }
    MK_DEVICE void multiply(float (&sums)[GROUPS][2][4]) const {
#pragma unroll
      for (int g = 0; g < GROUPS; g++) mk_mma(sums[g][0], even, b[g][0], b[g][1]);
#pragma unroll
      for (int g = 0; g < GROUPS; g++) mk_mma(sums[g][1], odd, b[g][2], b[g][3]);
    }
  };
  template <int GROUPS>
  MK_DEVICE static void multiply(float (&sums)[GROUPS][2][4], const char* chunk, int half,
                                 const mk_bf16* x, int x_pitch, int last, int first, int end) {
    const int lane = mk_lane();
    Weights w(chunk, half);
    const mk_bf16* x_at[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
      x_at[g] = x + least(g * TOKENS + lane % 8, last) * x_pitch + lane / 8 * 8 + first * 16;
    Pair<GROUPS> pair[2];  // the next is loaded before one is multiplied
    if (end - first == FULL) {
      w.at += first / 4 * 1024;
      pair[0].load(w, 0, x_at, 0);
#pragma unroll
      for (int i = 0; i < FULL / 2; i++) {
        if (i + 1 < FULL / 2) pair[(i + 1) % 2].load(w, 2 * i + 2, x_at, (i + 1) * 32);
        pair[i % 2].multiply(sums);
      }
      return;
    }
    int at = 0;
#pragma unroll 1
    for (int step = first; step + 1 < end; step += 2, at += 32) {
      pair[0].load(w, step, x_at, at);
      pair[0].multiply(sums);
    }
    if ((end - first) % 2 == 0 || end <= first) return;
    uint32_t a[4], b[4];  // a last single step: half of b is not used
    mk_load_matrix4(a, w.step(end - 1));
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      mk_load_matrix4(b, x_at[g] + at - lane / 16 * 16);
      mk_mma(sums[g][0], a, b[0], b[1]);
    }
  }
  template <int GROUPS>
  MK_DEVICE static void multiply(float (&sums)[GROUPS][2][4], const char* chunk, int half,
                                 const float* x, int x_pitch, int last, int first, int end) {
    const int row = mk_lane() / 4, token = mk_lane() % 4 * 2;
    for (int k = first * 16; k < end * 16; k++) {
      const bool odd = (k / 16 - first) & 1;
      const char* w = chunk + mk_box_place(row, k / 4) + k % 4 * 4;
#pragma unroll
      for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < 4; i++) {
          const float value = x[least(g * TOKENS + token + i % 2, last) * x_pitch + k];
          const float sum = mk_fma(*reinterpret_cast<const float*>(w + i / 2 * half), value,
                                   odd ? sums[g][1][i] : sums[g][0][i]);
          sums[g][0][i] = odd ? sums[g][0][i] : sum;
          sums[g][1][i] = odd ? sum : sums[g][1][i];
        }
    }
  }

  // This warp's part of k of rows that did not fit the stage buffer: nobody else reads them.
  MK_DEVICE static void fetch(const float* x, int k, int rows, char* to, MkGuard& guard) {
#pragma unroll 1
    for (int k0 = 0; k0 < k; k0 += SLICE) {
      const int width = least(SLICE, k - k0);
      const Share s(width, mk_warp());
      const int begin = k0 + s.first * 16, end = k0 + s.end * 16;
#pragma unroll 1
      for (int at = begin + mk_lane() * 4; at < end; at += 32 * 4)
#pragma unroll 1
        for (int row = 0; row < rows; row++) {
          mk_float4 v[1];
          mk_await(v, x + int64_t(row) * k + at, {0}, guard);
          mk_put(reinterpret_cast<mk_weight*>(to) + row * (k + PAD) + at, v[0]);
        }
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

// Brings rows to a stage buffer as mk_gather does, and norms them on the way: all compute warps do,
// whoever else is busy. A row stays in their registers, VECTORS in each thread; the warps' sums meet
// behind the rows.
// Order: MkNorm's of a row whose mean is not taken off.
template <int VECTORS>
MK_DEVICE inline void mk_gather_normed(const MkInput& in, char* buffer, MkGuard& guard) {
  enum { STRIDE = MK_COMPUTERS * 4 };  // columns from a thread's vector to its next
  const int first = mk_thread_here() * 4;
  mk_weight* staged = reinterpret_cast<mk_weight*>(buffer);
  float* sums = reinterpret_cast<float*>(staged + in.rows * in.pitch);
#pragma unroll 1
  for (int row = 0; row < in.rows; row++, staged += in.pitch) {
    const int place = MK_ROWS > 1 && in.source >= 0 ? mk_shared_word(in.source + row * 4) : row;
    const float* x = in.x + int64_t(place) * in.n;
    mk_float4 v[VECTORS];
    mk_word4 bits[VECTORS];
    int at[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {  // in place of a vector behind the last one the first of all
      at[i] = first + i * STRIDE < in.n ? first + i * STRIDE : 0;
      bits[i] = mk_load_immutable16(in.norm_w + at[i]);
    }
    mk_await(v, x, at, guard);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
      for (int j = 0; j < 4; j++) {
        const float more = mk_fma(v[i].v[j], v[i].v[j], sum);
        if (first + i * STRIDE < in.n) sum = more;
      }
    sum = mk_warp_sum(sum);
    float* here = sums + row % 2 * MK_COMPUTE_WARPS;  // the row before may still be read
    if (mk_lane() == 0) here[mk_warp()] = sum;
    mk_named_barrier(MK_COMPUTE_BARRIER, MK_COMPUTERS);
    float total = here[0];
#pragma unroll
    for (int warp = 1; warp < MK_COMPUTE_WARPS; warp++) total = mk_add(total, here[warp]);
    const float r = mk_div(1.0f, mk_sqrt(mk_add(mk_div(total, float(in.n)), in.norm_eps)));
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
      const mk_float4& w = reinterpret_cast<const mk_float4&>(bits[i]);
      for (int j = 0; j < 4; j++) v[i].v[j] = mk_mul(mk_mul(v[i].v[j], r), w.v[j]);
      if (first + i * STRIDE >= in.n) continue;
      mk_put(staged + first + i * STRIDE, v[i]);
      if (in.norm_y)
        mk_store(reinterpret_cast<mk_float4*>(in.norm_y + int64_t(row) * in.n + first + i * STRIDE),
                 v[i]);
    }
  }
}
MK_DEVICE inline void mk_gather_normed(const MkInput& in, char* buffer, MkGuard& guard) {
  if (in.n <= MK_COMPUTERS * 8)
    mk_gather_normed<2>(in, buffer, guard);
  else
    mk_gather_normed<4>(in, buffer, guard);
}

MK_DEVICE inline MkRows mk_dispatch_rows(const MkBox& box, int part, MkLoad& load);

// All products' weights, PARTS parts at a time: what a lane finds out, the others need not.
MK_DEVICE inline void mk_load_product(const MkBox& box, const MkParts& parts, MkLoad& load) {
  typedef MkProduct P;
  const int count = parts.count();
#pragma unroll 1
  for (int first = 0; first < count && !load.ring.guard->dead; first += P::PARTS) {
    const int mine = P::least(first + mk_lane() / 2, count - 1);
    const MkRows rows = mk_dispatch_rows(box, parts.at(mine), load);
    if (MK_FLAGGED) load.ring.guard->dead = mk_warp_any(load.ring.guard->dead);  // some are awaited
    P::stream(load, rows, P::least(count - first, P::PARTS));
  }
}

// A part of a block of more than 8 tokens: its groups are handed over one after the other, also
// those behind the first GROUPS, which hold no token.
template <int GROUPS>
MK_DEVICE inline void mk_compute_block(MkRole& role, MkCompute& c, int k, int tokens, int groups) {
  float sums[GROUPS][2][4];
  MkProduct::compute(c, c.staged, k, tokens, sums);
#pragma unroll
  for (int g = 0; g < MK_GROUPS; g++) {
    if (g >= groups) break;
    const int place = role.tile % MK_JOIN_SLOTS;
    role.guard.wait(role.shared.join_free + place, (role.tile / MK_JOIN_SLOTS & 1) ^ 1,
                    MK_WAIT_FREE_JOIN, place);
    if (g < GROUPS)
      MkProduct::leave(sums[g < GROUPS ? g : 0], role.shared.partials[place][mk_warp()]);
    mk_sync_warp();  // all lanes have written theirs
    if (mk_lane() == 0) mk_barrier_arrive(role.shared.joined + place);
    role.tile++;
  }
}

// All products' tiles, part by part: a slot's rows or everybody's, against what the loader brings.
MK_DEVICE inline void mk_compute_product(const MkBox& box, MkRole& role, MkCompute& c) {
  typedef MkProduct P;
  const MkPlan& plan = box.plan;
  const int parts = plan.parts, count = box.words[MK_RUN + 2] * parts, k = plan.k;
  if (MK_GROUPS > 1 && mk_groups(box) > 1) {
    const int groups = mk_groups(box), tokens = plan.tokens > 1 ? plan.tokens : 1;
#pragma unroll 1
    for (int i = 0; i < count; i++) {
      if (MK_GROUPS > 2 && tokens > 2 * P::TOKENS)
        mk_compute_block<MK_GROUPS>(role, c, k, tokens, groups);
      else
        mk_compute_block<MK_GROUPS == 1 ? 1 : 2>(role, c, k, tokens, groups);
    }
    return;
  }
  const bool slots = plan.table >= 0;
  const P::Walk walk(k);
  const MkEntry* const table = reinterpret_cast<const MkEntry*>(c.staged + plan.table);
  const MkEntry* entry = table + plan.slot;
  const int step = plan.step, all = plan.slots;
  int slot = plan.slot, place = 0, tokens = plan.tokens;
  if (slots) place = entry->place, tokens = entry->tokens;
#pragma unroll 1
  for (int i = 0, part = 1; i < count; i++, part++) {
    const char* x = c.staged + (place >= 0 ? place : plan.spare);
    const bool used = !slots || tokens > 0;
    if (used && place < 0)
      P::fetch(plan.x + int64_t(-1 - place) * k, k, tokens, c.arena + plan.spare,
               *c.ring.guard);
    const int now = tokens;
    int32_t tag = 0;
    if (slots && mk_warp() == 0 && mk_lane() < MK_TAGS) tag = entry->tags[mk_lane()];
    if (part == parts) {
      part = 0;
      slot += step;
      if (slot >= all) slot -= all;
      entry = table + slot;
      if (slots) place = entry->place, tokens = entry->tokens;  // on their way beside the product
    }
    float sums[2][4] = {};
    if (used) P::compute(c, walk, sums, x, now > 1 ? now : 1);
    const uint32_t tile = role.tile, to = tile % MK_JOIN_SLOTS;
    role.guard.wait(role.shared.join_free + to, (tile / MK_JOIN_SLOTS & 1) ^ 1, MK_WAIT_FREE_JOIN,
                    to);
    if (slots && mk_warp() == 0 && mk_lane() < MK_TAGS) role.shared.tags[to][mk_lane()] = tag;
    if (used) P::leave(sums, role.shared.partials[to][mk_warp()]);
    mk_sync_warp();  // all lanes have written theirs
    if (mk_lane() == 0) mk_barrier_arrive(role.shared.joined + to);
    role.tile++;
  }
}
