// The moe_down body: 16 output columns of one slot's expert for each of its pairs.
// Order: MkProduct's.
//
// All pairs' activations may not fit beside the ring (64 pairs of 768 are 98 KB), so a record
// stages those of its own slots: at 8 tokens it has about 16 of 64, and 20 pairs. When even these
// are too many, the slots left over are fetched tile by tile, each warp its own part of k.
struct moe_down : MkBody {
  typedef MkProduct P;
  typedef MkExperts E;
  static constexpr bool late = true;
  enum {
    STAGED = MK_ROWS == 1 ? 8 : 48 / sizeof(mk_weight),  // rows that a stage buffer holds
    SPARE = P::TOKENS,                // of them, the last ones, for a tile's fetch if not all fit
  };

  MK_DEVICE static int slot_of(const MoeDownArgs& a, int tile) {
    return tile * a.slot_step % a.slot_count;
  }
  MK_DEVICE static int column_of(const MoeDownArgs& a, int tile) {
    return tile / a.slot_count * P::ROWS;
  }

  // The stage buffer: rows [STAGED][k + PAD], and behind them these lists.
  template <class Int>
  struct Lists {
    Int* slots;   // [slot_count + 1][2] (expert, first pair)
    Int* needed;  // [slot_count] pairs of a slot that the record has tiles of, else 0
    Int* places;  // [slot_count] its first staged row, or -1
    Int* source;  // [STAGED] a staged row's place in act
    Int* pairs;   // [pairs]
  };
  template <class Int, class Char>
  MK_DEVICE static Lists<Int> lists(const MoeDownArgs& a, Char* buffer) {
    Int* slots = reinterpret_cast<Int*>(row(a, buffer, STAGED));
    Int* needed = slots + 2 * (a.slot_count + 1);
    Int* source = needed + 2 * a.slot_count;
    return {slots, needed, needed + a.slot_count, source, source + STAGED};
  }
  template <class Char>
  MK_DEVICE static Char* row(const MoeDownArgs& a, Char* buffer, int number) {
    return buffer + number * (a.k + P::PAD) * int(sizeof(mk_weight));
  }

  MK_DEVICE static void begin(const MoeDownArgs& a, MkLoad& ring) {
    E::begin(ring, a.slots, a.slot_count);
  }
  MK_DEVICE static void load(const MoeDownArgs& a, int tile, MkLoad& ring) {
    const int expert = E::expert(ring, a.slots, slot_of(a, tile)), n0 = column_of(a, tile);
    if (expert < 0) return;
    P::load(ring, a.w + (int64_t(expert) * a.n + n0) * a.k, P::least(P::ROWS, a.n - n0), a.k);
  }

  MK_DEVICE static void stage(const MoeDownArgs& a, const MkRun& run, const MkStage& s) {
    const Lists<int32_t> l = lists<int32_t>(a, s.buffer);
    const int slot_words = 2 * (a.slot_count + 1);
    E::Words words;
    E::take(s, words, a.slots, slot_words);
#pragma unroll 1
    for (int slot = s.thread; slot < a.slot_count; slot += MK_STAGERS) l.needed[slot] = 0;
    E::put(s, words, l.slots, a.slots, slot_words);
    s.sync();
    const int live = l.slots[slot_words - 1];
    E::take(s, words, a.pairs, live);  // under way meanwhile
    if (live <= STAGED) {  // all fit, in their order
#pragma unroll 1
      for (int slot = s.thread; slot < a.slot_count; slot += MK_STAGERS)
        l.places[slot] = l.slots[2 * slot + 1];
      s.copy(reinterpret_cast<mk_weight*>(s.buffer), a.k + P::PAD, a.act, a.k, live);
      E::put(s, words, l.pairs, a.pairs, live);
      return;
    }
#pragma unroll 1
    for (int i = s.thread; i < run.count; i += MK_STAGERS) {
      const int slot = slot_of(a, run.tile(i));
      l.needed[slot] = l.slots[2 * slot + 3] - l.slots[2 * slot + 1];
    }
    s.sync();
    const int staged = choose(a, s, l);
    s.sync();
    s.gather(reinterpret_cast<mk_weight*>(s.buffer), a.k + P::PAD, a.act, a.k, staged,
             [&l](int row) { return l.source[row]; });
    E::put(s, words, l.pairs, a.pairs, live);
  }

  // Gives slots rows as long as they fit; returns how many rows those are.
  MK_DEVICE static int choose(const MoeDownArgs& a, const MkStage& s, const Lists<int32_t>& l) {
    int total = 0, staged = 0, next = 0;
#pragma unroll 8
    for (int slot = 0; slot < a.slot_count; slot++) total += l.needed[slot];
    const int limit = total <= STAGED ? STAGED : STAGED - SPARE;
#pragma unroll 8
    for (int slot = 0; slot < a.slot_count; slot++) {
      const int rows = l.needed[slot], place = next;
      next += rows;
      if (next <= limit) staged = next;
      if (slot % MK_STAGERS != s.thread) continue;
      l.places[slot] = next <= limit ? place : -1;
      for (int i = 0; i < rows && next <= limit; i++)
        l.source[place + i] = l.slots[2 * slot + 1] + i;
    }
    return staged;
  }

  MK_DEVICE static void compute(const MoeDownArgs& a, int tile, MkCompute& c) {
    const Lists<const int32_t> l = lists<const int32_t>(a, c.staged);
    const int slot = slot_of(a, tile), first = l.slots[2 * slot + 1];
    const int rows = l.slots[2 * slot + 3] - first;
    if (mk_warp() == 0 && mk_lane() < P::TOKENS)  // the output row of each column
      c.tags[mk_lane()] = mk_lane() < rows ? l.pairs[first + mk_lane()] : -1;
    if (l.slots[2 * slot] < 0) return;
    const int place = l.places[slot];
    if (place < 0) fetch(a, row(a, c.arena, STAGED - SPARE), first, rows);
    P::compute(c, row(a, c.staged, place < 0 ? STAGED - SPARE : place), a.k, rows);
  }

  // The k that this warp multiplies, of up to 8 rows of act: nobody else reads them.
  MK_DEVICE static void fetch(const MoeDownArgs& a, char* to, int first_row, int rows) {
#pragma unroll 1
    for (int k0 = 0; k0 < a.k; k0 += P::SLICE) {
      const int steps = P::least(P::SLICE, a.k - k0) / 16, share = (steps + 7) / 8;
      const int first = mk_warp() * share, end = P::least(first + share, steps);
#pragma unroll 1
      for (int k = first * 16 + mk_lane() * 4; k < end * 16; k += 32 * 4) {
        const float* from = a.act + int64_t(first_row) * a.k + k0 + k;
        mk_float4 x[SPARE];
#pragma unroll
        for (int i = 0; i < SPARE; i++)
          if (i < rows) x[i] = mk_load_coherent4(from + int64_t(i) * a.k);
#pragma unroll
        for (int i = 0; i < SPARE; i++)
          if (i < rows) MkStage::put(reinterpret_cast<mk_weight*>(row(a, to, i)) + k0 + k, x[i]);
      }
    }
    mk_sync_warp();
  }

  // a lane has one output column and four pairs
  MK_DEVICE static void store(const MoeDownArgs& a, int tile, const MkStore& s) {
    const int column = column_of(a, tile) + mk_lane() / 2;
    const int32_t* pair = s.tags + mk_lane() % 2 * 4;
    if (column >= a.n || pair[0] < 0) return;  // a slot's pairs lie side by side
    const mk_float4 y = P::join(s);
    for (int i = 0; i < 4 && pair[i] >= 0; i++)
      mk_store(a.y + int64_t(pair[i]) * a.n + column, y.v[i]);
  }
};
