// The moe_combine body: 1024 columns of a token's weighted sum of its experts, added to its
// residual row.
struct moe_combine : MkBody {
  enum { CHOICES = 8, COLUMNS = MK_COMPUTERS * 4 };  // loads under way; columns of a tile

  MK_DEVICE static void early(const MoeCombineArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const MoeCombineArgs& a, int tile, MkCompute& c) {
    const int parts = (a.n + COLUMNS - 1) / COLUMNS;
    const int token = tile / parts, n = tile % parts * COLUMNS + mk_thread() * 4;
    if (token >= c.notes[0] || n >= a.n) return;
    const float* weights = a.weights + int64_t(token) * a.top;
    const float* y = a.y + int64_t(token) * a.top * a.n + n;  // [top, n]
    float* x = a.x + int64_t(token) * a.n + n;
    mk_float4 old = mk_load_coherent4(x), sum = {{0, 0, 0, 0}};
#pragma unroll 1
    for (int c0 = 0; c0 < a.top; c0 += CHOICES) {
      float weight[CHOICES];
      mk_float4 value[CHOICES];
#pragma unroll
      for (int i = 0; i < CHOICES; i++)
        if (c0 + i < a.top) {
          weight[i] = mk_load_coherent(weights + c0 + i);
          value[i] = mk_load_coherent4(y + int64_t(c0 + i) * a.n);
        }
#pragma unroll
      for (int i = 0; i < CHOICES; i++)
        if (c0 + i < a.top)
          for (int j = 0; j < 4; j++) sum.v[j] = mk_fma(weight[i], value[i].v[j], sum.v[j]);
    }
    for (int j = 0; j < 4; j++) old.v[j] = mk_add(old.v[j], sum.v[j]);
    mk_store(reinterpret_cast<mk_float4*>(x), old);
  }
};
