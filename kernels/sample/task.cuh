// The sample body: one block of one row's columns. A thread takes up to four vectors of four columns,
// a warp a group at a time; the larger score, then the lower index, wins at every join, and a logit
// that is not finite counts as the largest of all, with the index -1. Loops are not unrolled: the
// code runs once a step, and most of it for rows that ask for more than a draw.
struct sample : MkBody {
  enum {
    COLUMNS = MkDraw::COLUMNS,
    FLIGHT = COLUMNS / (MK_COMPUTERS * 4),  // vectors that a thread has under way
  };
  using Best = MkDraw::Best;

  MK_DEVICE static void early(const SampleArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const SampleArgs& a, int tile, MkCompute& c) {
    const int blocks = (a.n + COLUMNS - 1) / COLUMNS;
    const int row = tile / blocks, from = tile % blocks * COLUMNS + MkDraw::thread() * 4;
    const int end = from / COLUMNS * COLUMNS + COLUMNS < a.n ? from / COLUMNS * COLUMNS + COLUMNS
                                                             : a.n;
    Best best = MkDraw::nothing();
    if (row < c.notes[0]) {
      mk_float4 x[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++)
        x[i] = MkDraw::four(a.x + int64_t(row) * a.n, from + i * MK_COMPUTERS * 4, end,
                            a.n % 4 == 0);
      const MkDraw way(a.sampling + row * MkDraw::WORDS);
      const bool drawn = way.temperature() > 0.0f, cut = way.cut();
      const int edits = way.w[MkDraw::FLAGS] & MkDraw::EDITS;
      const int groups = (a.n + MkDraw::GROUP - 1) / MkDraw::GROUP;
      int sequence = 0, position = 0;
      if (drawn || edits) {
        const int token = mk_load_immutable(a.index + row);
        sequence = mk_load_immutable(a.rows + 2 * token);
        position = mk_load_immutable(a.rows + 2 * token + 1);
      }
#pragma unroll 1
      for (int at = from; at - MkDraw::lane() * 4 < end; at += MK_COMPUTERS * 4) {
        mk_float4 v = x[0];
        if (way.w[MkDraw::TOLD]) weigh(a, v, (row * 2 + 1) * groups + at / MkDraw::GROUP);
        if (edits) edit(a, way, v, int64_t(sequence) * groups * MkDraw::GROUP + at, at);
        if (drawn)
#pragma unroll
          for (int i = 0; i < 4; i++) v.v[i] = mk_div(v.v[i], way.temperature());
        if (edits || cut) {
          mk_store(reinterpret_cast<mk_float4*>(a.scores + int64_t(row) * groups * MkDraw::GROUP + at),
                   v);
          if (cut) weigh(a, v, row * 2 * groups + at / MkDraw::GROUP);
        }
        uint32_t words[4] = {};
        if (drawn) way.words(words, at, position);
#pragma unroll 1
        for (int i = 0; i < 4 && at + i < end; i++) {
          const float logit = x[0].v[0];
          const bool finite = mk_add(logit, -logit) == 0.0f && v.v[0] < mk_float(0x7f800000);
          const float score = drawn ? mk_add(v.v[0], MkDraw::noise(words[0])) : v.v[0];
          best.join({finite ? score : mk_float(0x7f800000), finite ? at + i : -1});
          for (int j = 0; j < 3; j++)
            words[j] = words[j + 1], x[0].v[j] = x[0].v[j + 1], v.v[j] = v.v[j + 1];
        }
#pragma unroll
        for (int i = 0; i + 1 < FLIGHT; i++) x[i] = x[i + 1];
      }
    }
    best.join_warp();
    if (MkDraw::lane() == 0) *reinterpret_cast<Best*>(c.partial) = best;
  }

  MK_DEVICE static void store(const SampleArgs& a, int tile, const MkStore& s) {
    const int row = tile / ((a.n + COLUMNS - 1) / COLUMNS);
    if (MkDraw::lane() != 0 || row >= s.notes[0]) return;
    Best best = *reinterpret_cast<const Best*>(s.partials);
    for (int warp = 1; warp < MK_COMPUTE_WARPS; warp++)
      best.join(*reinterpret_cast<const Best*>(s.partials + warp * MK_PARTIAL));
    mk_store(a.best + tile, best.at < 0 ? mk_float(0x7fc00000) : best.value);
    mk_store(a.at + tile, best.at);
  }

  // Changes four logits as the row's way says; `place` is theirs in its sequence's tables.
  MK_DEVICE static void edit(const SampleArgs& a, const MkDraw& way, mk_float4& v, int64_t place,
                             int at) {
    const int flags = way.w[MkDraw::FLAGS];
    mk_word4 tally = {}, bias = {};
    uint32_t mask = 15;
    if (flags & (MkDraw::REPEATS | MkDraw::COUNTS | MkDraw::EARLY))
      tally = mk_load_coherent16(a.tally + place);
    if (flags & MkDraw::BIASED) bias = mk_load_coherent16(a.bias + place);
    if (flags & MkDraw::MASKED) mask = uint32_t(mk_load_coherent(a.mask + place / 32)) >> at % 32;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
      float x = v.v[0];
      const int times = tally.v[0] & (MkDraw::PROMPT - 1);
      if (flags & MkDraw::REPEATS && (times || tally.v[0] & MkDraw::PROMPT)) {
        const float penalty = mk_float(way.w[MkDraw::REPETITION]);
        x = x > 0.0f ? mk_div(x, penalty) : mk_mul(x, penalty);
      }
      if (flags & MkDraw::COUNTS && times)
        x = mk_add(x, -mk_add(mk_mul(static_cast<float>(times), mk_float(way.w[MkDraw::FREQUENCY])),
                              mk_float(way.w[MkDraw::PRESENCE])));
      if (flags & MkDraw::BIASED) x = mk_add(x, mk_float(bias.v[0]));
      if ((flags & MkDraw::EARLY && tally.v[0] & MkDraw::END) || !(mask & 1))
        x = mk_float(0xff800000u);
      for (int j = 0; j < 3; j++)
        v.v[j] = v.v[j + 1], tally.v[j] = tally.v[j + 1], bias.v[j] = bias.v[j + 1];
      v.v[3] = x;
      mask >>= 1;
    }
  }

  // A warp's group, four values a lane: its largest, and the sum of e^(value - largest).
  MK_DEVICE static void weigh(const SampleArgs& a, const mk_float4& v, int64_t to) {
    const float none = mk_float(0xff800000u);
    float peak = mk_max(mk_max(v.v[0], v.v[1]), mk_max(v.v[2], v.v[3]));
    peak = mk_add(mk_warp_max(peak), 0.0f);
    float e[4];
#pragma unroll
    for (int i = 0; i < 4; i++) e[i] = peak == none ? 0.0f : MkDraw::exp(mk_add(v.v[i], -peak));
#pragma unroll 1
    for (int mask = 16; mask; mask /= 2)
#pragma unroll
      for (int i = 0; i < 4; i++) e[i] = mk_add(e[i], mk_shuffle_xor(e[i], mask));
    if (MkDraw::lane() != 0) return;
    mk_store(a.peaks + to, peak);
    mk_store(a.sums + to, mk_add(mk_add(e[0], e[2]), mk_add(e[1], e[3])));
  }
};
