// The moe_down body: 16 output columns of one slot's expert for each of its pairs.
// Order: MkProduct's.
//
// All pairs' activations may not fit beside the ring (64 pairs of 768 are 98 KB), so a record
// stages those of its own slots: at 8 tokens it has about 16 of 64, and 20 pairs. When even these
// are too many, the slots left over are fetched tile by tile, each warp its own part of k. A record
// of a wider step has one slot.
struct moe_down : MkProductBody {
  typedef MkProduct P;
  typedef MkExperts E;
  static constexpr bool late = true;
  enum {
    STAGED = MK_ROWS == 1 || E::ALONE  ? 8  // rows that a stage buffer holds
             : sizeof(mk_weight) == 2 ? 24
                                      : 20,
    SPARE = E::ALONE ? 0 : MK_ROWS,  // of them, for a tile's fetch if not all fit
  };

  static_assert(STAGED > SPARE, "some rows are staged beside those that are fetched");

  // The node's slots, by their number in it: (expert, first pair), and of the one behind the last.
  MK_DEVICE static const int32_t* slots(const MoeDownArgs& a) { return a.slots + 2 * a.first_slot; }
  MK_DEVICE static int slot_of(const MoeDownArgs& a, int tile) {
    return tile * a.slot_step % a.slot_count;
  }
  MK_DEVICE static int column_of(const MoeDownArgs& a, int tile) {
    return tile / a.slot_count * P::ROWS;
  }

  // The stage buffer: rows [STAGED][k + PAD], the table of slots and its lists, and behind them:
  struct Places {
    int32_t* needed;  // [slot_count] pairs of a slot that the record has tiles of, else 0
    int32_t* source;  // [STAGED] a staged row's place in act
  };
  MK_DEVICE static int row_bytes(const MoeDownArgs& a) {
    return (a.k + P::PAD) * int(sizeof(mk_weight));
  }
  MK_DEVICE static E::Lists lists(const MoeDownArgs& a, const MkStage& s) {
    return E::lists(s, STAGED * row_bytes(a), a.slot_count);
  }
  MK_DEVICE static Places places(const MoeDownArgs& a, const E::Lists& l) {
    int32_t* needed = l.pairs + a.slot_count;
    return {needed, needed + a.slot_count};
  }

  MK_DEVICE static void begin(const MoeDownArgs& a, const MkRun& run, MkLoad& ring) {
    E::begin(ring, run, slots(a), a.slot_count, a.slot_step);
  }
  MK_DEVICE static MkRows rows(const MoeDownArgs& a, int tile, int lower, const MkLoad& ring) {
    const int expert = E::expert(ring, slots(a), slot_of(a, tile));
    const int n0 = column_of(a, tile) + lower * P::HALF;
    return {a.w, a.place_of_w, expert < 0 ? 0 : a.k, int64_t(expert) * a.n + n0, a.n - n0};
  }

  MK_DEVICE static void early(const MoeDownArgs& a, const MkRun& run, const MkStage& s) {
    if (s.thread != 0) return;
    *s.plan = {a.k, 0, 1, STAGED * row_bytes(a), 0, 0, 1, (STAGED - SPARE) * row_bytes(a), a.act};
    if (E::ALONE) s.plan->table = -1;
    else E::walk(*s.plan, run, a.slot_count, a.slot_step);
  }

  // notes: [rows to stage, whether some are left out, the first of those that all are]; of one slot
  // alone, MkExperts'
  MK_DEVICE static void prepare(const MoeDownArgs& a, const MkRun& run, const MkStage& s) {
    if (E::ALONE) {
      const int row = E::row_of(s, run, slots(a), a.slot_count, a.slot_step);
      const int pair = row >= 0 ? mk_load_coherent(a.pairs + row) : -1;
      if (s.thread < E::PAIRS) s.notes[E::ROW_TAGS + s.thread] = pair;
      s.sync();  // the notes are there
      return;
    }
    const E::Lists l = lists(a, s);
    const Places p = places(a, l);
#pragma unroll 1
    for (int slot = s.thread; slot < a.slot_count; slot += MK_STAGERS) p.needed[slot] = 0;
    E::fetch(s, l, slots(a), a.slot_count, a.pairs, a.slot_count);  // there may be more pairs
    s.sync();
    const int first = a.first_slot ? l.slots[1] : 0, live = l.slots[2 * a.slot_count + 1] - first;
    if (s.thread == 0) s.notes[1] = live > STAGED;
    if (s.thread == 0 && a.first_slot) s.notes[2] = first;
    if (live <= STAGED) {  // all fit, in their order
#pragma unroll 1
      for (int slot = s.thread; slot < a.slot_count; slot += MK_STAGERS)
        l.table[slot].place = (l.slots[2 * slot + 1] - first) * row_bytes(a);
      if (s.thread == 0) s.notes[0] = live;
    } else {
#pragma unroll 1
      for (int i = s.thread; i < run.count; i += MK_STAGERS) {
        const int slot = slot_of(a, run.tile(i));
        p.needed[slot] = l.slots[2 * slot + 3] - l.slots[2 * slot + 1];
      }
      s.sync();
      const int staged = choose(a, s, l, p);
      if (s.thread == 0) s.notes[0] = staged;
    }
    tag(a, s, l);
    s.sync();  // the notes are there
  }
  MK_DEVICE static MkInput input(const MoeDownArgs& a, const MkRun&, const MkStage& s) {
    if (E::ALONE) return P::input(a.act + int64_t(s.notes[E::FIRST]) * a.k, a.k, s.notes[0]);
    const int32_t* source = places(a, lists(a, s)).source;
    const int64_t first = a.first_slot && !s.notes[1] ? s.notes[2] : 0;
    return {a.act + first * a.k, a.k, s.notes[0], a.k + P::PAD,
            s.notes[1] ? mk_shared_place(source) : -1};
  }

  // Gives slots rows as long as they fit; returns how many rows those are. With one token none are
  // staged: it has more pairs than fit only if it chose more than STAGED experts, and what it stages
  // is taken in order.
  MK_DEVICE static int choose(const MoeDownArgs& a, const MkStage& s, const E::Lists& l,
                              const Places& p) {
    int total = 0, staged = 0, next = 0;
#pragma unroll 2
    for (int slot = 0; slot < a.slot_count; slot++) total += p.needed[slot];
    const int limit = MK_ROWS == 1 ? 0 : total <= STAGED ? STAGED : STAGED - SPARE;
#pragma unroll 2
    for (int slot = 0; slot < a.slot_count; slot++) {
      const int rows = p.needed[slot], place = next;
      next += rows;
      if (next <= limit) staged = next;
      if (slot % MK_STAGERS != s.thread) continue;
      l.table[slot].place = next <= limit ? place * row_bytes(a) : -1 - l.slots[2 * slot + 1];
      for (int i = 0; i < rows && next <= limit; i++)
        p.source[place + i] = l.slots[2 * slot + 1] + i;
    }
    return staged;
  }

  // a slot's rows are its pairs, and so are their tags
  MK_DEVICE static void tag(const MoeDownArgs& a, const MkStage& s, const E::Lists& l) {
#pragma unroll 1
    for (int slot = s.thread; slot < a.slot_count; slot += MK_STAGERS) {
      MkEntry& entry = l.table[slot];
      const int first = l.slots[2 * slot + 1], rows = l.slots[2 * slot + 3] - first;
      entry.tokens = l.slots[2 * slot] < 0 ? 0 : rows;
#pragma unroll 1
      for (int i = 0; i < MK_TAGS; i++) {
        const int at = first + i;
        int32_t pair[1] = {-1};
        if (i < rows && at < a.slot_count) pair[0] = l.pairs[at];
        else if (i < rows) mk_await(pair, a.pairs + at, {0}, *s.guard);
        entry.tags[i] = pair[0];
      }
    }
  }

  // a lane has one output column and four pairs
  MK_DEVICE static void store(const MoeDownArgs& a, int tile, const MkStore& s) {
    const int column = E::column(s, tile, a.slot_count) * P::ROWS + mk_lane() / 2;
    const int32_t* pair = E::tags(s) + mk_lane() % 2 * 4;
    if (column >= a.n || pair[0] < 0) return;  // a slot's pairs lie side by side
    const mk_float4 y = P::join(s);
    for (int i = 0; i < 4 && pair[i] >= 0; i++)
      mk_store(a.y + int64_t(pair[i]) * a.n + column, y.v[i]);
  }
};
