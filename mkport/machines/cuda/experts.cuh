// What the expert ops share: slots, of one expert each, whose tiles find out at run time which
// expert that is. A slot's pairs are at most 8, and one product takes them all.
//
// A step of up to 8 tokens has few slots, and a record has tiles of many; a wider one has records of
// one slot each (ALONE), whose pairs alone are staged.
struct MkExperts {
  enum { PAIRS = 8, ALONE = MK_ROWS > PAIRS };

  // In the stage buffer of a record: an entry a slot, and what they are made from.
  struct Lists {
    MkEntry* table;  // [slot_count]
    int32_t* slots;  // [slot_count + 1][2] (expert, first pair)
    int32_t* pairs;
  };
  static_assert(sizeof(MkEntry) == 40, "as the ops count it");
  MK_DEVICE static Lists lists(const MkStage& s, int at, int slot_count) {
    MkEntry* table = reinterpret_cast<MkEntry*>(s.buffer + at);
    int32_t* slots = reinterpret_cast<int32_t*>(table + slot_count);
    return {table, slots, slots + 2 * (slot_count + 1)};
  }

  // Brings the slots and `pairs` of the pairs here; to be read behind the next `sync`.
  MK_DEVICE static void fetch(const MkStage& s, const Lists& l, const int32_t* slots,
                              int slot_count, const int32_t* pairs, int pair_count) {
    enum { FLIGHT = 4 };  // loads of a thread under way
    const int slot_words = 2 * (slot_count + 1), words = slot_words + pair_count;
#pragma unroll 1
    for (int first = s.thread; first < words; first += FLIGHT * MK_STAGERS) {
      int32_t word[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        const int at = first + i * MK_STAGERS;
        if (at < words)
          word[i] = mk_load_coherent(at < slot_words ? slots + at : pairs + (at - slot_words));
      }
#pragma unroll
      for (int i = 0; i < FLIGHT; i++)
        if (first + i * MK_STAGERS < words) l.slots[first + i * MK_STAGERS] = word[i];
    }
  }

  // A plan's way through the slots, for tiles that lie slot_step slots apart.
  MK_DEVICE static void walk(MkPlan& plan, const MkRun& run, int slot_count, int slot_step) {
    plan.slot = run.first * slot_step % slot_count;
    plan.step = run.stride * slot_step % slot_count;
    plan.slots = slot_count;
  }

  // The slot of a record that has one alone: its pairs are [first, first + count).
  struct Slot {
    int first, count;
  };
  MK_DEVICE static Slot slot_of(const MkRun& run, const int32_t* slots, int slot_count,
                                int slot_step) {
    const int32_t* slot = slots + run.first * slot_step % slot_count * 2;
    const int expert = mk_load_coherent(slot), first = mk_load_coherent(slot + 1);
    const int end = mk_load_coherent(slot + 3);
    return {first, expert < 0 ? 0 : end - first};
  }
  // Its entry, `at` bytes from the stage buffer; thread t has the tag of row t. notes: [rows, first
  // pair].
  MK_DEVICE static void enter(const MkStage& s, int at, const Slot& slot, int tag) {
    MkEntry& entry = *reinterpret_cast<MkEntry*>(s.buffer + at);
    if (s.thread < MK_TAGS) entry.tags[s.thread] = s.thread < slot.count ? tag : -1;
    if (s.thread == 0) {
      entry.place = 0;
      entry.tokens = slot.count;
      s.notes[0] = slot.count;
      s.notes[1] = slot.first;
    }
    s.sync();  // all may read it
  }

  // Lane l of the loader keeps the experts of slots l and l + 32 for all tiles of the record.
  MK_DEVICE static void begin(MkLoad& ring, const MkRun& run, const int32_t* slots, int slot_count,
                              int slot_step) {
    if (ALONE) {
      ring.notes[0] = mk_load_coherent(slots + 2 * (run.first * slot_step % slot_count));
      return;
    }
    for (int i = 0; i < 2; i++) {
      const int slot = mk_lane() + 32 * i;
      ring.notes[i] = slot < slot_count ? mk_load_coherent(slots + 2 * slot) : -1;
    }
  }
  // The expert of each lane's own slot.
  MK_DEVICE static int expert(const MkLoad& ring, const int32_t* slots, int slot) {
    if (ALONE) return ring.notes[0];
    const int low = mk_shuffle(ring.notes[0], slot % 32), high = mk_shuffle(ring.notes[1], slot % 32);
    if (slot >= 64) return mk_load_coherent(slots + 2 * slot);
    return slot < 32 ? low : high;
  }
};
