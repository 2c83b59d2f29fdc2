// The attention_combine body: the splits of a token joined, 64 columns of a head by a warp, or by all
// of them, each with splits of its own. A half warp has every other split.
// Order: m = the largest m_s; split s (the first live one is 0) to sum s % 16, by fused multiply-adds
// with e^(m_s - m), ascending; the sums joined in halves, i + 8 to i first; l likewise; y = acc / l.
struct attention_combine : MkBody {
  enum {
    SPLIT = 512,  // keys
    COLUMNS = 64,
    FLIGHT = 8,   // splits under way in a half warp, and
    TOPS = 2,     // in a lane, of which m is wanted
    ROOM = 132,   // floats that a warp leaves: both halves' sums, then their l, then m
  };
  static constexpr float LOG2_E = 1.44269504f;

  // notes: [tokens, then each one's position]
  static_assert(MK_ROWS < MK_NOTES, "the notes have room");
  MK_DEVICE static void early(const AttentionCombineArgs& a, const MkRun&, const MkStage& s) {
    const int tokens = mk_load_immutable(a.count), t = s.thread;
    if (t == 0) s.notes[0] = tokens;
    if (t < tokens) s.notes[1 + t] = mk_load_immutable(a.rows + 2 * t + 1);
  }

  // A head's splits; the s-th that its token sees is at place first + s, behind the last again at 0.
  struct Splits {
    const float* begin;
    uint32_t step, places, first;
    int count;
    MK_DEVICE const float* at(int s) const {  // behind the last one: the last one
      const uint32_t place = first + (s < count ? s : count - 1), around = place - places;
      return begin + (place < around ? place : around) * step;  // the one that is there is less
    }
  };

  MK_DEVICE static void compute(const AttentionCombineArgs& a, int tile, MkCompute& c) {
    const int across = (a.head_dim + COLUMNS - 1) / COLUMNS, units = MK_COMPUTE_WARPS / a.warps;
    const int tiles = (a.heads * across + units - 1) / units, token = tile / tiles;
    const int unit = tile % tiles * units + (a.warps == 1 ? mk_warp() : 0), head = unit / across;
    if (token >= c.notes[0] || head >= a.heads) return;
    const int position = c.notes[1 + token];
    const int oldest = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    const uint32_t first = uint32_t(oldest) / SPLIT, places = a.splits;
    const uint32_t row = a.head_dim + 16, step = a.heads * row;  // of partial
    const float* begin = a.partial + int64_t(token) * a.splits * step + head * row;
    const int count = uint32_t(position) / SPLIT + 1 - first;
    const Splits from = {begin, step, places, first % places, count};
    float* y = a.y + (int64_t(token) * a.heads + head) * a.head_dim;
    if (a.warps == 1)
      join<1>(from, unit % across * COLUMNS, a.head_dim, y, c);
    else
      join<MK_COMPUTE_WARPS>(from, unit % across * COLUMNS, a.head_dim, y, c);
  }

  template <int WARPS>
  MK_DEVICE static void join(const Splits& from, int column, int dim, float* y, MkCompute& c) {
    enum { STEP = 2 * WARPS, MINE = 8 / WARPS };  // to a half warp's next split; its sums
    const int lane = mk_lane(), half = lane / 16, d = column + lane % 16 * 4;
    const int own = (WARPS > 1 ? mk_warp() * 2 : 0) + half;
    mk_float4 sums[8] = {};
    float ls[8] = {}, m = 0.0f;
#pragma unroll 1
    for (int s = own; s - own < from.count; s += FLIGHT * STEP) {
      mk_float4 x[FLIGHT], ml[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        const float* split = from.at(s + i * STEP);
        x[i] = mk_load_coherent4(split + (d < dim ? d : 0));
        ml[i] = mk_load_coherent4(split + dim);  // m, l, and what nobody needs
      }
      if (s == own) m = top<WARPS>(from, dim, c);
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        if (s + i * STEP >= from.count) continue;
        const float factor = mk_exp2(mk_mul(mk_add(ml[i].v[0], -m), LOG2_E));
        ls[i % MINE] = mk_fma(ml[i].v[1], factor, ls[i % MINE]);
        for (int j = 0; j < 4; j++)
          sums[i % MINE].v[j] = mk_fma(x[i].v[j], factor, sums[i % MINE].v[j]);
      }
    }
    if (WARPS > 1) {  // the first warp takes all
      float* room = reinterpret_cast<float*>(c.arena);
      *reinterpret_cast<mk_float4*>(room + mk_warp() * ROOM + lane * 4) = sums[0];
      if (lane % 16 == 0) room[mk_warp() * ROOM + 128 + half] = ls[0];
      c.sync();
      if (mk_warp() > 0) return;
#pragma unroll
      for (int i = 0; i < 8; i++, room += ROOM) {
        sums[i] = *reinterpret_cast<const mk_float4*>(room + lane * 4);
        ls[i] = room[128 + half];
      }
    }
#pragma unroll
    for (int i = 4; i; i /= 2)
      for (int k = 0; k < i; k++) {
        ls[k] = mk_add(ls[k], ls[k + i]);
        for (int j = 0; j < 4; j++) sums[k].v[j] = mk_add(sums[k].v[j], sums[k + i].v[j]);
      }
    const float l = mk_add(ls[0], mk_shuffle_xor(ls[0], 16));
    for (int j = 0; j < 4; j++) {
      const float sum = mk_add(sums[0].v[j], mk_shuffle_xor(sums[0].v[j], 16));
      sums[0].v[j] = mk_div(sum, l);
    }
    if (half == 0 && d < dim) mk_store(reinterpret_cast<mk_float4*>(y + d), sums[0]);
  }

  // The largest m; of several warps each looks at its own splits.
  template <int WARPS>
  MK_DEVICE static float top(const Splits& from, int dim, MkCompute& c) {
    enum { STEP = 32 * WARPS };  // to a lane's next split
    const int lane = mk_lane(), own = WARPS > 1 ? lane / 2 * 16 + mk_warp() * 2 + lane % 2 : lane;
    float m = mk_float(0xff800000);
#pragma unroll 1
    for (int s = 0; s < from.count; s += TOPS * STEP) {
      float x[TOPS];
#pragma unroll
      for (int i = 0; i < TOPS; i++) x[i] = mk_load_coherent(from.at(s + own + i * STEP) + dim);
#pragma unroll
      for (int i = 0; i < TOPS; i++) m = mk_max(m, x[i]);
    }
    m = mk_warp_max(m);
    if (WARPS == 1) return m;
    float* room = reinterpret_cast<float*>(c.arena) + ROOM - 1;
    if (lane == 0) room[mk_warp() * ROOM] = m;
    c.sync();
#pragma unroll 1
    for (int i = 0; i < WARPS; i++) m = mk_max(m, room[i * ROOM]);
    return m;
  }
};
