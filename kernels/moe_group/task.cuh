// The moe_group body: every pair counts the pairs before it, and the slots before its own.
struct moe_group : MkBody {
  enum { PAIRS = 8 };  // of a slot; a step of up to 8 tokens has no more of an expert
  static constexpr uint32_t NONE = ~0u;

  MK_DEVICE static void early(const MoeGroupArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const MoeGroupArgs& a, int, MkCompute& c) {
    const int choices = c.notes[0] * a.k, padded = (choices + 3) / 4 * 4;
    // As they are compared, without a sign, no choice (-1) comes behind all experts.
    uint32_t* ids = reinterpret_cast<uint32_t*>(c.arena);  // [padded]
    int32_t* first = reinterpret_cast<int32_t*>(ids + padded);  // [padded] see `lead`
#pragma unroll 1
    for (int p = mk_thread(); p < padded; p += MK_COMPUTERS)
      ids[p] = p < choices ? mk_load_coherent(a.ids + p) : -1;
    c.sync();
#pragma unroll 1
    for (int p = mk_thread(); p < padded; p += MK_COMPUTERS) {
      const uint32_t mine = ids[p];
      int place = 0, earlier = 0;  // pairs before this one, and those of the same expert
#pragma unroll 2
      for (int q = 0; q < padded; q += 4) {
        const mk_word4 other = *reinterpret_cast<const mk_word4*>(ids + q);
        for (int j = 0; j < 4; j++) {
          place += other.v[j] < mine;
          earlier += other.v[j] == mine && q + j < p;
        }
      }
      place += earlier;
      if (mine != NONE) mk_store(a.pairs + place, p);
      const bool leads = MK_ROWS > PAIRS ? earlier % PAIRS == 0 : earlier == 0;
      first[p] = mine != NONE && leads ? place : -1;  // its place if it leads a slot's
    }
    c.sync();
#pragma unroll 1
    for (int p = mk_thread(); p < padded; p += MK_COMPUTERS) {
      int slot = 0, before = 0;  // slots and pairs of the experts below its own
      if (first[p] >= 0) before = leaders(ids, first, padded, ids[p], slot);
      if (MK_ROWS > PAIRS) slot += (first[p] - before) / PAIRS;
      if (first[p] >= 0) put(a, slot, ids[p], first[p]);
    }
    int used = 0;
    const int live = leaders(ids, first, padded, NONE, used);
#pragma unroll 1
    for (int slot = used + mk_thread(); slot <= a.slot_count; slot += MK_COMPUTERS)
      put(a, slot, -1, live);
  }
  // Slots' leading pairs of experts below `end`, added to `slot`; returns the pairs of those experts.
  MK_DEVICE static int leaders(const uint32_t* ids, const int32_t* first, int padded, uint32_t end,
                               int& slot) {
    int pairs = 0;
#pragma unroll 2
    for (int q = 0; q < padded; q += 4) {
      const mk_word4 id = *reinterpret_cast<const mk_word4*>(ids + q);
      const mk_word4 place = *reinterpret_cast<const mk_word4*>(first + q);
      for (int j = 0; j < 4; j++) {
        const bool below = id.v[j] < end;
        pairs += below;
        slot += below && static_cast<int32_t>(place.v[j]) >= 0;
      }
    }
    return pairs;
  }
  MK_DEVICE static void put(const MoeGroupArgs& a, int slot, int expert, int place) {
    mk_store(a.slots + 2 * slot, expert);
    mk_store(a.slots + 2 * slot + 1, place);
  }
};
