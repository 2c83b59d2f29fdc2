// The moe_group body: every expert looks for its pairs, two lanes each, a half of them a lane.
struct moe_group : MkBody {
  enum {
    PAIRS = 8,  // of a slot; a step of up to 8 tokens has no more of an expert
    EXPERTS = MK_COMPUTERS / 2,
  };

  MK_DEVICE static void early(const MoeGroupArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const MoeGroupArgs& a, int, MkCompute& c) {
    const int choices = c.notes[0] * a.k, padded = (choices + 3) / 4 * 4;
    const int experts = (a.experts + 3) / 4 * 4, odd = mk_thread() % 2;
    uint32_t* ids = reinterpret_cast<uint32_t*>(c.arena);        // [padded]
    int32_t* counts = reinterpret_cast<int32_t*>(ids + padded);  // [experts]
    int32_t* halves = counts + experts;                          // [experts] of the even lanes
#pragma unroll 1
    for (int p = mk_thread(); p < padded; p += MK_COMPUTERS)
      ids[p] = p < choices ? mk_load_coherent(a.ids + p) : -1;
    c.sync();
    const int half = padded / 8 * 4, from = odd ? half : 0, to = odd ? padded : half;
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

  MK_DEVICE static void put(const MoeGroupArgs& a, int slot, int expert, int place) {
    mk_store(a.slots + 2 * slot, expert);
    mk_store(a.slots + 2 * slot + 1, place);
  }
};
