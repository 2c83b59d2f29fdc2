// The moe_group body. Of up to 8 tokens, every pair counts the pairs before it, and the slots before
// its own. Of more, every expert looks for its pairs, two lanes each, a half of them a lane.
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
    if (MK_ROWS > PAIRS) return search(a, ids, first, padded, c);
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
      first[p] = mine != NONE && earlier == 0 ? place : -1;  // its place if it leads its expert's
    }
    c.sync();
#pragma unroll 1
    for (int p = mk_thread(); p < padded; p += MK_COMPUTERS) {
      int slot = 0;
      if (first[p] >= 0) leaders(ids, first, padded, ids[p], slot);
      if (first[p] >= 0) put(a, slot, ids[p], first[p]);
    }
    int used = 0;
    const int live = leaders(ids, first, padded, NONE, used);
#pragma unroll 1
    for (int slot = used + mk_thread(); slot <= a.slot_count; slot += MK_COMPUTERS)
      put(a, slot, -1, live);
  }
  // counts: [experts, a multiple of 4] behind the ids, then those of the even lanes' halves
  MK_DEVICE static void search(const MoeGroupArgs& a, const uint32_t* ids, int32_t* counts,
                               int padded, const MkCompute& c) {
    enum { EXPERTS = MK_COMPUTERS / 2 };
    const int experts = (a.experts + 3) / 4 * 4, odd = mk_thread() % 2;
    const int half = padded / 8 * 4, from = odd ? half : 0, to = odd ? padded : half;
    int32_t* halves = counts + experts;
#pragma unroll 1
    for (int e0 = 0; e0 < experts; e0 += EXPERTS) {
      const int e = e0 + mk_thread() / 2;
      int found = 0;
#pragma unroll 2
      for (int q = from; q < to; q += 4) {
        const mk_word4 id = *reinterpret_cast<const mk_word4*>(ids + q);
        for (int j = 0; j < 4; j++) found += id.v[j] == static_cast<uint32_t>(e);
      }
      const int both = found + mk_shuffle_xor(found, 1);
      if (e >= experts || odd) continue;
      counts[e] = both;
      halves[e] = found;
    }
    c.sync();
#pragma unroll 1
    for (int e0 = 0; e0 < experts; e0 += EXPERTS) {
      const int e = e0 + mk_thread() / 2;
      Before before = {0, 0}, all = {0, 0};
#pragma unroll 2
      for (int q = odd * 4; q < experts; q += 8) {
        const mk_word4 count = *reinterpret_cast<const mk_word4*>(counts + q);
        for (int j = 0; j < 4; j++) {
          const int pairs = static_cast<int32_t>(count.v[j]);
          all.add(pairs);
          before.add(q + j < e ? pairs : 0);
        }
      }
      before = before.both();
      all = all.both();
      if (e < experts) {
        int place = before.pairs + (odd ? halves[e] : 0);
#pragma unroll 1
        for (int q = from; q < to; q += 4) {
          const mk_word4 id = *reinterpret_cast<const mk_word4*>(ids + q);
          for (int j = 0; j < 4; j++) {
            if (id.v[j] != static_cast<uint32_t>(e)) continue;
            const int nth = place - before.pairs;
            if (nth % PAIRS == 0) put(a, before.slots + nth / PAIRS, e, place);
            mk_store(a.pairs + place++, q + j);
          }
        }
      }
      if (e0 > 0) continue;
#pragma unroll 1
      for (int slot = all.slots + mk_thread(); slot <= a.slot_count; slot += MK_COMPUTERS)
        put(a, slot, -1, all.pairs);
    }
  }
  struct Before {
    int pairs, slots;
    MK_DEVICE void add(int more) {
      pairs += more;
      slots += (more + PAIRS - 1) / PAIRS;
    }
    MK_DEVICE Before both() const {
      return {pairs + mk_shuffle_xor(pairs, 1), slots + mk_shuffle_xor(slots, 1)};
    }
  };

  // Leading pairs of experts below `end`, added to `slot`; returns the pairs of those experts.
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
