// The attention_combine body: the splits of 8 heads of a token joined, a warp a head.
// Order: m = the largest m_s; l: split s (from the first live one) to lane s % 32, fused
// multiply-adds with e^(m_s - m) in each lane, lanes joined in halves; acc: fused multiply-adds,
// splits ascending; y = acc / l.
struct attention_combine : MkBody {
  enum { SPLIT = 512, FLIGHT = 8 };  // keys; splits under way
  static constexpr float LOG2_E = 1.44269504f;

  // notes: [tokens, then each one's position]
  static_assert(MK_ROWS < MK_NOTES, "the notes have room");
  MK_DEVICE static void early(const AttentionCombineArgs& a, const MkRun&, const MkStage& s) {
    const int tokens = mk_load_immutable(a.count), t = s.thread;
    if (t == 0) s.notes[0] = tokens;
    if (t < tokens) s.notes[1 + t] = mk_load_immutable(a.rows + 2 * t + 1);
  }

  MK_DEVICE static void compute(const AttentionCombineArgs& a, int tile, MkCompute& c) {
    const int parts = (a.heads + MK_COMPUTE_WARPS - 1) / MK_COMPUTE_WARPS;
    const int token = tile / parts, head = tile % parts * MK_COMPUTE_WARPS + mk_warp();
    if (token >= c.notes[0] || head >= a.heads) return;
    const int position = c.notes[1 + token];
    const int oldest = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    const uint32_t first = uint32_t(oldest) / SPLIT, places = a.splits;
    const int count = uint32_t(position) / SPLIT + 1 - first;
    const uint32_t row = a.head_dim + 16, step = a.heads * row;  // of partial
    float* factors = reinterpret_cast<float*>(c.arena) + mk_warp() * 2 * a.splits;  // [splits]
    const float* begin = a.partial + int64_t(token) * a.splits * step + head * row;
    const Splits from = {begin, step, places, first % places};
    const int d = mk_lane() * 4;
    mk_float4 v[FLIGHT] = {};
    if (d < a.head_dim) fetch(v, from, d, 0, count);  // on their way beside the factors
    mk_sync_warp();  // the tile before this one has been read
    const float l = weigh(from, a.head_dim, count, factors, factors + a.splits);
    mk_sync_warp();  // the factors are there
#pragma unroll 1
    for (int at = d; at < a.head_dim; at += 32 * 4) {
      mk_float4 y = {{0, 0, 0, 0}};
#pragma unroll 1
      for (int s = 0; s < count; s += FLIGHT) {
        if (s > 0 || at > d) fetch(v, from, at, s, count);
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
          if (s + i >= count) continue;
          for (int j = 0; j < 4; j++) y.v[j] = mk_fma(v[i].v[j], factors[s + i], y.v[j]);
        }
      }
      for (int i = 0; i < 4; i++) y.v[i] = mk_div(y.v[i], l);
      float* to = a.y + (int64_t(token) * a.heads + head) * a.head_dim + at;
      mk_store(reinterpret_cast<mk_float4*>(to), y);
    }
  }

  // A head's splits; the s-th that its token sees is at place first + s, behind the last again at 0.
  struct Splits {
    const float* begin;
    uint32_t step, places, first;
    MK_DEVICE const float* at(int s) const {
      const uint32_t place = first + s, around = place - places;  // the one that is there is less
      return begin + uint64_t(place < around ? place : around) * step;
    }
  };

  // the splits' factors, and l
  MK_DEVICE static float weigh(const Splits& from, int dim, int count, float* factors, float* ls) {
    float m = mk_float(0xff800000), l = 0.0f;
#pragma unroll 1
    for (int s = mk_lane(); s < count; s += 32) {
      const float* ml = from.at(s) + dim;
      const float here = mk_load_coherent(ml), more = mk_load_coherent(ml + 1);
      factors[s] = here;
      ls[s] = more;
      m = mk_max(m, here);
    }
    m = mk_warp_max(m);
#pragma unroll 1
    for (int s = mk_lane(); s < count; s += 32) {
      factors[s] = mk_exp2(mk_mul(mk_add(factors[s], -m), LOG2_E));
      l = mk_fma(ls[s], factors[s], l);
    }
    return mk_warp_sum(l);
  }

  // four columns of splits s and on
  MK_DEVICE static void fetch(mk_float4 (&v)[FLIGHT], const Splits& from, int d, int s, int count) {
#pragma unroll
    for (int i = 0; i < FLIGHT; i++)
      if (s + i < count) v[i] = mk_load_coherent4(from.at(s + i) + d);
  }
};
