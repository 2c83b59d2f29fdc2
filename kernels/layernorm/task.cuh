// The layernorm body: one token.
struct layernorm : MkBody {
  MK_DEVICE static void early(const LayernormArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
    MkNorm::fetch(s, a.w, a.k);
  }

  MK_DEVICE static void compute(const LayernormArgs& a, int tile, MkCompute& c) {
    if (tile >= c.notes[0]) return;
    const MkNorm norm = MkNorm::of(c, a.k, false);
    norm.read(a.x + int64_t(tile) * a.k, *c.ring.guard);
    norm.write(c, a.y + int64_t(tile) * a.k, a.eps, true);
  }
};
