// What the expert ops share: slots, of one expert each, whose tiles find out at run time which
// expert that is. A slot's pairs are at most the step's tokens, and one product takes them all.
struct MkExperts {
  enum { FLIGHT = 4 };

  // A list of `n` words on its way to shared memory: loads under way between `take` and `put`.
  struct Words {
    int32_t v[FLIGHT];
  };
  MK_DEVICE static void take(const MkStage& s, Words& words, const int32_t* from, int n) {
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) {
      const int at = s.thread + i * MK_STAGERS;
      if (at < n) words.v[i] = mk_load_coherent(from + at);
    }
  }
  MK_DEVICE static void put(const MkStage& s, const Words& words, int32_t* to, const int32_t* from,
                            int n) {
#pragma unroll
    for (int i = 0; i < FLIGHT; i++) {
      const int at = s.thread + i * MK_STAGERS;
      if (at < n) to[at] = words.v[i];
    }
#pragma unroll 1
    for (int at = s.thread + FLIGHT * MK_STAGERS; at < n; at += MK_STAGERS)
      to[at] = mk_load_coherent(from + at);
  }

  // Lane l of the loader keeps the experts of slots l and l + 32 for all tiles of the record.
  MK_DEVICE static void begin(MkLoad& ring, const int32_t* slots, int slot_count) {
    for (int i = 0; i < 2; i++) {
      const int slot = mk_lane() + 32 * i;
      ring.notes[i] = slot < slot_count ? mk_load_coherent(slots + 2 * slot) : -1;
    }
  }
  MK_DEVICE static int expert(const MkLoad& ring, const int32_t* slots, int slot) {
    if (slot >= 64) return mk_load_coherent(slots + 2 * slot);
    return mk_shuffle(slot < 32 ? ring.notes[0] : ring.notes[1], slot % 32);
  }
};
