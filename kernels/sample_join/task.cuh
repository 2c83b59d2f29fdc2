// The sample_join body: one row. The larger value, then the lower index, wins; a part that has no
// best counts as the largest of all, so that its -1 does.
struct sample_join : MkBody {
  struct Best {
    float value;
    int32_t at;
    MK_DEVICE void join(const Best& other) {
      if (other.value > value || (other.value == value && other.at < at)) *this = other;
    }
  };

  MK_DEVICE static void early(const SampleJoinArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const SampleJoinArgs& a, int tile, MkCompute& c) {
    Best best = {mk_float(0xff800000u), 0x7fffffff};
    if (tile < c.notes[0]) {
      const int64_t row = int64_t(tile) * a.parts;
#pragma unroll 1
      for (int part = mk_thread(); part < a.parts; part += MK_COMPUTERS) {
        const Best more = {mk_load_coherent(a.best + row + part), mk_load_coherent(a.at + row + part)};
        best.join({more.at < 0 ? mk_float(0x7f800000) : more.value, more.at});
      }
    }
    for (int mask = 16; mask; mask /= 2)
      best.join({mk_shuffle_xor(best.value, mask), mk_shuffle_xor(best.at, mask)});
    if (mk_lane() == 0) *reinterpret_cast<Best*>(c.partial) = best;
  }

  MK_DEVICE static void store(const SampleJoinArgs& a, int tile, const MkStore& s) {
    if (mk_lane() != 0 || tile >= s.notes[0]) return;
    Best best = *reinterpret_cast<const Best*>(s.partials);
    for (int warp = 1; warp < MK_COMPUTE_WARPS; warp++)
      best.join(*reinterpret_cast<const Best*>(s.partials + warp * MK_PARTIAL));
    mk_store(a.y + tile, best.at);
  }
};
