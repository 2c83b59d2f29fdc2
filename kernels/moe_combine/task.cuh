// The moe_combine body: one token's weighted sum of its experts, added to its residual row.
struct moe_combine : MkBody {
  enum { WIDE = 2, CHOICES = 8 };  // loads under way: vectors of 4 columns, choices of each

  MK_DEVICE static void early(const MoeCombineArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const MoeCombineArgs& a, int tile, MkCompute& c) {
    if (tile >= c.notes[0]) return;
    const float* y = a.y + int64_t(tile) * a.top * a.n;  // [top, n]
    float* x = a.x + int64_t(tile) * a.n;
    for (int n0 = mk_thread() * 4; n0 < a.n; n0 += MK_COMPUTERS * 4 * WIDE) {
      mk_float4 old[WIDE], sum[WIDE] = {};
#pragma unroll
      for (int v = 0; v < WIDE; v++) {
        const int n = n0 + v * MK_COMPUTERS * 4;
        if (n < a.n) old[v] = mk_load_coherent4(x + n);
      }
      for (int c0 = 0; c0 < a.top; c0 += CHOICES) add(a, tile, y, n0, c0, sum);
#pragma unroll
      for (int v = 0; v < WIDE; v++) {
        const int n = n0 + v * MK_COMPUTERS * 4;
        for (int i = 0; i < 4; i++) old[v].v[i] = mk_add(old[v].v[i], sum[v].v[i]);
        if (n < a.n) mk_store(reinterpret_cast<mk_float4*>(x + n), old[v]);
      }
    }
  }

  // sum += weight y for up to CHOICES choices from `c0` on, best first.
  MK_DEVICE static void add(const MoeCombineArgs& a, int tile, const float* y, int n0, int c0,
                            mk_float4 (&sum)[WIDE]) {
    float weights[CHOICES];
    mk_float4 values[CHOICES][WIDE];
#pragma unroll
    for (int i = 0; i < CHOICES; i++) {
      if (c0 + i >= a.top) continue;
      weights[i] = mk_load_coherent(a.weights + int64_t(tile) * a.top + c0 + i);
#pragma unroll
      for (int v = 0; v < WIDE; v++) {
        const int n = n0 + v * MK_COMPUTERS * 4;
        if (n < a.n) values[i][v] = mk_load_coherent4(y + int64_t(c0 + i) * a.n + n);
      }
    }
#pragma unroll
    for (int i = 0; i < CHOICES; i++) {
      if (c0 + i >= a.top) continue;
#pragma unroll
      for (int v = 0; v < WIDE; v++)
        for (int j = 0; j < 4; j++)
          sum[v].v[j] = mk_fma(weights[i], values[i][v].v[j], sum[v].v[j]);
    }
  }
};
