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

  // Brings the slots and up to `pairs` of the pairs here, those that there are; to be read behind the
  // next `sync`.
  MK_DEVICE static void fetch(const MkStage& s, const Lists& l, const int32_t* slots,
                              int slot_count, const int32_t* pairs, int pair_count) {
    enum { FLIGHT = 4 };  // loads of a thread under way
    const int slot_words = 2 * (slot_count + 1), words = slot_words + pair_count;
#pragma unroll 1
    for (int first = s.thread; first < words; first += FLIGHT * MK_STAGERS) {
      int32_t word[FLIGHT];
      MkAwait wait(*s.guard);
      bool late;
#pragma unroll 1
      do {
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {  // in place of a word that is not there, the first again
          const int at = first + i * MK_STAGERS < words ? first + i * MK_STAGERS : first;
          mk_read(word[i], at < slot_words ? slots + at : pairs + (at - slot_words));
        }
        late = false;
#pragma unroll
        for (int i = 0; i < FLIGHT; i++)  // how many pairs there are the slots must say first
          late |= first + i * MK_STAGERS < slot_words && mk_unwritten(word[i]);
      } while (wait.again(late));
#pragma unroll
      for (int i = 0; i < FLIGHT; i++)
        if (first + i * MK_STAGERS < words) l.slots[first + i * MK_STAGERS] = word[i];
    }
    if (!MK_FLAGGED) return;
    s.sync();
    const int live = l.slots[slot_words - 1];
#pragma unroll 1
    for (int i = s.thread; i < live && i < pair_count; i += MK_STAGERS) {
      int32_t pair[1] = {l.pairs[i]};
      if (mk_unwritten(pair[0])) mk_await(pair, pairs + i, {0}, *s.guard);
      l.pairs[i] = pair[0];
    }
  }

  // A plan's way through the slots, for tiles that lie slot_step slots apart.
  MK_DEVICE static void walk(MkPlan& plan, const MkRun& run, int slot_count, int slot_step) {
    plan.slot = run.first * slot_step % slot_count;
    plan.step = run.stride * slot_step % slot_count;
    plan.slots = slot_count;
  }

  // A record of one slot alone: notes [rows, first pair, then each row's tag, and its place in x]. A
  // slot that is not used has less than no rows.
  enum {
    FIRST = 1,
    ROW_TAGS = 2,
    SOURCE = ROW_TAGS + PAIRS,
    FACTOR = SOURCE + PAIRS,  // to divide by the slots
    SLOT_NOTES,
  };
  static_assert(!ALONE || SLOT_NOTES <= MK_NOTES, "the notes have room");
  static_assert(int(PAIRS) == int(MK_TAGS), "a tag a pair");
  // Thread t learns where its row's number is kept in `pairs`, or -1.
  MK_DEVICE static int row_of(const MkStage& s, const MkRun& run, const int32_t* slots,
                              int slot_count, int slot_step) {
    const int32_t* slot = slots + run.first * slot_step % slot_count * 2;
    const int expert = mk_load_coherent(slot), first = mk_load_coherent(slot + 1);
    const int rows = expert < 0 ? 0 : mk_load_coherent(slot + 3) - first;
    if (s.thread == 0) {
      s.notes[0] = rows;
      s.notes[FIRST] = first;
      s.notes[FACTOR] = static_cast<int32_t>(MkDivider::of(slot_count).factor);
      s.plan->tokens = expert < 0 ? -1 : rows;
    }
    return s.thread < rows ? first + s.thread : -1;
  }
  // Which 16 columns a tile has, for `store`.
  MK_DEVICE static int column(const MkStore& s, int tile, int slot_count) {
    if (!ALONE) return tile / slot_count;
    int slot;
    return MkDivider{slot_count, static_cast<uint32_t>(s.notes[FACTOR])}.divide(tile, slot);
  }
  // The tags of `store`'s lanes.
  MK_DEVICE static const int32_t* tags(const MkStore& s) { return ALONE ? s.notes + ROW_TAGS : s.tags; }

  // Lane l of the loader keeps the experts of slots l and l + 32 for all tiles of the record.
  MK_DEVICE static void begin(MkLoad& ring, const MkRun& run, const int32_t* slots, int slot_count,
                              int slot_step) {
    if (ALONE) {
      ring.notes[0] = mk_load_coherent(slots + 2 * (run.first * slot_step % slot_count));
      return;
    }
    int32_t experts[2];
    const int at[2] = {2 * (mk_lane() < slot_count ? mk_lane() : 0),
                       2 * (mk_lane() + 32 < slot_count ? mk_lane() + 32 : 0)};
    mk_await(experts, slots, at, *ring.ring.guard);
    for (int i = 0; i < 2; i++)
      ring.notes[i] = mk_lane() + 32 * i < slot_count ? experts[i] : -1;
  }
  // The same of a step with one token, from its logits z: nobody needs to wait for the op that makes
  // the slots. Its choice is `topk`'s. Without one, since a logit is no number, any expert does.
  enum { LOOKED_AT = 4 * 32, CHOSEN = 32 };  // experts and choices, at most
  MK_DEVICE static void choose(MkLoad& ring, const float* z, int experts, int top, int first_slot) {
    const int lane = mk_lane();
    ring.notes[0] = ring.notes[1] = -1;
    if (top == 0) return;  // there is no token
    float x[4], strange = 0.0f;
    int at[4];
    uint32_t keys[4];
#pragma unroll
    for (int j = 0; j < 4; j++) at[j] = lane + 32 * j < experts ? lane + 32 * j : 0;
    mk_await(x, z, at, *ring.ring.guard);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      strange = mk_add(strange, mk_add(x[j], -x[j]));
      keys[j] = lane + 32 * j < experts ? key(x[j]) : 0;
    }
    const bool broken = mk_warp_any(strange != 0.0f);
    int32_t mine = experts, rank = 0, slot = 0;  // of choice `lane`
#pragma unroll 1
    for (int i = 0; i < top; i++) {
      uint32_t best = keys[0], place = lane;
#pragma unroll
      for (int j = 1; j < 4; j++)
        if (keys[j] > best) best = keys[j], place = lane + 32 * j;
      const uint32_t expert = mk_warp_min(best == mk_warp_max(best) ? place : ~0u);
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (expert == uint32_t(lane + 32 * j)) keys[j] = 0;
      if (lane == i) mine = static_cast<int32_t>(expert);
    }
#pragma unroll 1
    for (int i = 0; i < top; i++) rank += mk_shuffle(mine, i) < mine;
#pragma unroll 1
    for (int i = 0; i < top; i++) {  // slots are in the order of experts
      const int32_t its = mk_shuffle(rank, i) - first_slot, expert = mk_shuffle(mine, i);
      if (its == lane) slot = expert;
    }
    ring.notes[0] = broken ? 0 : slot;
  }
  // Finite logits as integers above 0 in the same order, both zeros as one.
  MK_DEVICE static uint32_t key(float x) {
    const int32_t bits = mk_bits(mk_add(x, 0.0f));
    return bits ^ ((bits >> 31) | 0x80000000);
  }
  // The expert of each lane's own slot.
  MK_DEVICE static int expert(const MkLoad& ring, const int32_t* slots, int slot) {
    if (ALONE) return ring.notes[0];
    const int low = mk_shuffle(ring.notes[0], slot % 32), high = mk_shuffle(ring.notes[1], slot % 32);
    if (slot < 64) return slot < 32 ? low : high;
    int32_t found[1];
    mk_await(found, slots + 2 * slot, {0}, *ring.ring.guard);
    return found[0];
  }
};
