// The rmsnorm body: one token. A single group is shared out to all threads, several to the warps.
struct rmsnorm : MkBody {
  MK_DEVICE static void early(const RmsnormArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
    MkNorm::fetch(s, a.w, a.k);
  }

  MK_DEVICE static void compute(const RmsnormArgs& a, int tile, MkCompute& c) {
    if (tile >= c.notes[0]) return;
    const MkNorm norm = MkNorm::of(c, a.k, a.groups > 1);
    const int warps = a.groups > 1 ? MK_COMPUTE_WARPS : 1;
#pragma unroll 1
    for (int group = mk_warp() % warps; group < a.groups; group += warps) {
      const int64_t at = (int64_t(tile) * a.groups + group) * a.k;
      norm.read(a.x + at, *c.ring.guard);
      norm.write(c, a.y + at, a.eps, false);
    }
  }
};
