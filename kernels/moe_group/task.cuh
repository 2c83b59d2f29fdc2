// The moe_group body: every expert looks for its tokens, which become bits of a set; a pair's place is
// that of its expert and how many of the expert's tokens come before its own.
struct moe_group : MkBody {
  enum {
    PAIRS = 8,  // of a slot; a step of up to 8 tokens has no more of an expert
    HALF = 32,  // tokens: a lane's set
    EXPERTS = MK_COMPUTERS / 2,
  };
  static_assert(MK_ROWS <= 2 * HALF, "two lanes know all tokens");

  // An expert's: sets of tokens, its first pair and its first slot.
  struct Expert {
    uint32_t tokens[2];
    int32_t pair, slot;
    MK_DEVICE int before(int token) const {  // its tokens before this one
      const uint32_t rest = (1u << token % HALF) - 1;
      if (token < HALF) return mk_count_bits(tokens[0] & rest);
      return mk_count_bits(tokens[0]) + mk_count_bits(tokens[1] & rest);
    }
    MK_DEVICE int pairs() const { return mk_count_bits(tokens[0]) + mk_count_bits(tokens[1]); }
    MK_DEVICE int slots() const { return (pairs() + PAIRS - 1) / PAIRS; }
  };

  MK_DEVICE static void early(const MoeGroupArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const MoeGroupArgs& a, int, MkCompute& c) {
    const int tokens = c.notes[0], choices = tokens * a.k, padded = (choices + 3) / 4 * 4;
    int32_t* ids = reinterpret_cast<int32_t*>(c.arena);          // [padded]
    Expert* experts = reinterpret_cast<Expert*>(ids + padded);  // [experts]
#pragma unroll 1
    for (int p = mk_thread(); p < choices; p += MK_COMPUTERS) ids[p] = mk_load_coherent(a.ids + p);
    c.sync();
    const int half = mk_thread() % 2, first = half * HALF;
    const int end = tokens < first + HALF ? tokens : first + HALF;
#pragma unroll 1
    for (int e = mk_thread() / 2; e < a.experts; e += EXPERTS) {
      uint32_t set = 0;
#pragma unroll 1
      for (int token = first; token < end; token++) {
        bool chosen = false;
#pragma unroll 8
        for (int i = 0; i < a.k; i++) chosen |= ids[token * a.k + i] == e;
        set |= static_cast<uint32_t>(chosen) << (token - first);
      }
      experts[e].tokens[half] = set;
    }
    c.sync();
    if (mk_warp() == 0) number(a, experts);
    c.sync();
#pragma unroll 1
    for (int p = mk_thread(); p < choices; p += MK_COMPUTERS) {
      if (ids[p] < 0) continue;
      const Expert& expert = experts[ids[p]];
      const int nth = expert.before(p / a.k), place = expert.pair + nth;
      mk_store(a.pairs + place, p);
      if (nth % PAIRS == 0) put(a, expert.slot + nth / PAIRS, ids[p], place);
    }
    const Expert& last = experts[a.experts - 1];
#pragma unroll 1
    for (int slot = last.slot + last.slots() + mk_thread(); slot <= a.slot_count; slot += MK_COMPUTERS)
      put(a, slot, -1, last.pair + last.pairs());
  }
  // The experts' first pairs and slots, by one warp: a lane has neighbours.
  MK_DEVICE static void number(const MoeGroupArgs& a, Expert* experts) {
    const int each = (a.experts + 31) / 32, begin = mk_lane() * each;
    const int end = begin + each < a.experts ? begin + each : a.experts;
    int pairs = 0, slots = 0;
#pragma unroll 1
    for (int e = begin; e < end; e++) pairs += experts[e].pairs(), slots += experts[e].slots();
    int pair = pairs, slot = slots;  // of all lanes up to this one
#pragma unroll 1
    for (int far = 1; far < 32; far *= 2) {
      const int more_pairs = mk_shuffle(pair, (mk_lane() - far) & 31);
      const int more_slots = mk_shuffle(slot, (mk_lane() - far) & 31);
      if (mk_lane() >= far) pair += more_pairs, slot += more_slots;
    }
    pair -= pairs, slot -= slots;
#pragma unroll 1
    for (int e = begin; e < end; e++) {
      experts[e].pair = pair;
      experts[e].slot = slot;
      pair += experts[e].pairs(), slot += experts[e].slots();
    }
  }
  MK_DEVICE static void put(const MoeGroupArgs& a, int slot, int expert, int place) {
    mk_store(a.slots + 2 * slot, expert);
    mk_store(a.slots + 2 * slot + 1, place);
  }
};
