// The moe_group body: every pair counts the pairs before it, and the experts before its own.
struct moe_group : MkBody {
  MK_DEVICE static void early(const MoeGroupArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const MoeGroupArgs& a, int, MkCompute& c) {
    const int choices = c.notes[0] * a.k;
    int32_t* ids = reinterpret_cast<int32_t*>(c.arena);  // [choices]
    int32_t* first = ids + choices;  // [choices] its place if it is its expert's first pair, or -1
#pragma unroll 1
    for (int p = mk_thread(); p < choices; p += MK_COMPUTERS) ids[p] = mk_load_coherent(a.ids + p);
    c.sync();
#pragma unroll 1
    for (int p = mk_thread(); p < choices; p += MK_COMPUTERS) {
      int place = 0;
      bool lead = ids[p] >= 0;
#pragma unroll 1
      for (int q = 0; q < choices; q++) {
        const bool earlier = ids[q] == ids[p] && q < p;
        place += ids[q] >= 0 && (ids[q] < ids[p] || earlier);
        lead &= !earlier;
      }
      if (ids[p] >= 0) mk_store(a.pairs + place, p);
      first[p] = lead ? place : -1;
    }
    c.sync();
    int used = 0, live = 0;
#pragma unroll 1
    for (int q = 0; q < choices; q++) used += first[q] >= 0, live += ids[q] >= 0;
#pragma unroll 1
    for (int p = mk_thread(); p < choices; p += MK_COMPUTERS) {
      if (first[p] < 0) continue;
      int slot = 0;
#pragma unroll 1
      for (int q = 0; q < choices; q++) slot += first[q] >= 0 && ids[q] < ids[p];
      put(a, slot, ids[p], first[p]);
    }
#pragma unroll 1
    for (int slot = used + mk_thread(); slot <= a.slot_count; slot += MK_COMPUTERS)
      put(a, slot, -1, live);
  }
  MK_DEVICE static void put(const MoeGroupArgs& a, int slot, int expert, int place) {
    mk_store(a.slots + 2 * slot, expert);
    mk_store(a.slots + 2 * slot + 1, place);
  }
};
