// The attention_combine body: the splits of 8 heads of a token joined, a warp a head.
// Order: m = the largest m_s; l: split s (from the first live one) to lane s % 32, fused
// multiply-adds with e^(m_s - m) in each lane, lanes joined in halves; acc: fused multiply-adds,
// splits ascending; y = acc / l.
struct attention_combine : MkBody {
  enum { SPLIT = 512, FLIGHT = 8 };  // keys; splits under way
  static constexpr float LOG2_E = 1.44269504f;

  MK_DEVICE static void compute(const AttentionCombineArgs& a, int tile, MkCompute& c) {
    const int parts = (a.heads + MK_COMPUTE_WARPS - 1) / MK_COMPUTE_WARPS;
    const int token = tile / parts, head = tile % parts * MK_COMPUTE_WARPS + mk_warp();
    const int tokens = mk_load_coherent(a.count);
    const int position = mk_load_coherent(a.rows + 2 * token + 1);
    if (token >= tokens || head >= a.heads) return;
    const int oldest = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    const int first = oldest / SPLIT, count = position / SPLIT + 1 - first;
    const int row = a.head_dim + 16;  // of partial
    const int64_t step = int64_t(a.heads) * row;
    float* factors = reinterpret_cast<float*>(c.arena) + mk_warp() * 2 * a.splits;  // [splits]
    const float* from = a.partial + (int64_t(token) * a.splits + first) * step + head * row;
    mk_sync_warp();  // the tile before this one has been read
    const float l = weigh(from + a.head_dim, step, count, factors, factors + a.splits);
    mk_sync_warp();  // the factors are there
#pragma unroll 1
    for (int d = mk_lane() * 4; d < a.head_dim; d += 32 * 4) {
      mk_float4 y = add(from + d, step, count, factors);
      for (int i = 0; i < 4; i++) y.v[i] = mk_div(y.v[i], l);
      float* to = a.y + (int64_t(token) * a.heads + head) * a.head_dim + d;
      mk_store(reinterpret_cast<mk_float4*>(to), y);
    }
  }

  // the splits' factors, and l; `ml` is the first split's m and l
  MK_DEVICE static float weigh(const float* ml, int64_t step, int count, float* factors,
                               float* ls) {
    float m = mk_float(0xff800000), l = 0.0f;
#pragma unroll 1
    for (int s = mk_lane(); s < count; s += 32) {
      const float here = mk_load_coherent(ml + s * step), more = mk_load_coherent(ml + s * step + 1);
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

  // four columns over all splits
  MK_DEVICE static mk_float4 add(const float* x, int64_t step, int count, const float* factors) {
    mk_float4 y = {{0, 0, 0, 0}};
#pragma unroll 1
    for (int s = 0; s < count; s += FLIGHT) {
      mk_float4 v[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++)
        if (s + i < count) v[i] = mk_load_coherent4(x + (s + i) * step);
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        if (s + i >= count) continue;
        for (int j = 0; j < 4; j++) y.v[j] = mk_fma(v[i].v[j], factors[s + i], y.v[j]);
      }
    }
    return y;
  }
};
