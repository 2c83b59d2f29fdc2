// The attention_combine body: one token's splits joined, a warp a head.
// Order: m = the largest m_s; l: split s (from the first live one) to lane s % 32, fused
// multiply-adds with e^(m_s - m) in each lane, lanes joined in halves; acc: fused multiply-adds,
// splits ascending; y = acc / l.
struct attention_combine : MkBody {
  enum { SPLIT = 256, FLIGHT = 8 };  // keys; splits under way
  static constexpr float LOG2_E = 1.44269504f;

  MK_DEVICE static void compute(const AttentionCombineArgs& a, int tile, MkCompute& c) {
    if (tile >= mk_load_coherent(a.count)) return;
    const int position = mk_load_coherent(a.rows + 2 * tile + 1);
    const int oldest = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    const int first = oldest / SPLIT, count = position / SPLIT + 1 - first;
    const int row = a.head_dim + 16;  // of partial
    const int64_t step = int64_t(a.heads) * row;
    float* factors = reinterpret_cast<float*>(c.arena) + mk_warp() * a.splits;  // [splits]
    for (int head = mk_warp(); head < a.heads; head += MK_COMPUTE_WARPS) {
      const float* from = a.partial + (int64_t(tile) * a.splits + first) * step + head * row;
      const float l = weigh(from + a.head_dim, step, count, factors);
      mk_sync_warp();  // the factors are there
      for (int d = mk_lane() * 4; d < a.head_dim; d += 32 * 4) {
        mk_float4 y = add(from + d, step, count, factors);
        for (int i = 0; i < 4; i++) y.v[i] = mk_div(y.v[i], l);
        float* to = a.y + (int64_t(tile) * a.heads + head) * a.head_dim + d;
        mk_store(reinterpret_cast<mk_float4*>(to), y);
      }
      mk_sync_warp();  // and have been read
    }
  }

  // the splits' factors, and l; `ml` is the first split's m and l
  MK_DEVICE static float weigh(const float* ml, int64_t step, int count, float* factors) {
    float m = mk_float(0xff800000), l = 0.0f;
    for (int s = mk_lane(); s < count; s += 32) m = mk_max(m, mk_load_coherent(ml + s * step));
    m = mk_warp_max(m);
    for (int s = mk_lane(); s < count; s += 32) {
      const float x = mk_add(mk_load_coherent(ml + s * step), -m);
      factors[s] = mk_exp2(mk_mul(x, LOG2_E));
      l = mk_fma(mk_load_coherent(ml + s * step + 1), factors[s], l);
    }
    return mk_warp_sum(l);
  }

  // four columns over all splits
  MK_DEVICE static mk_float4 add(const float* x, int64_t step, int count, const float* factors) {
    mk_float4 y = {{0, 0, 0, 0}};
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
