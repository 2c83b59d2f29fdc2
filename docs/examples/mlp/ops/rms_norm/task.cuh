// The rms_norm body: one row, its columns to the 256 compute threads in turn.
struct rms_norm : MkBody {
  MK_DEVICE static void compute(const RmsNormArgs& a, int tile, MkCompute& c) {
    const float* x = a.x + int64_t(tile) * a.n;
    float mine = 0.0f;
    for (int i = mk_thread(); i < a.n; i += MK_COMPUTERS) {
      const float v = mk_load_coherent(x + i);
      mine = mk_fma(v, v, mine);
    }
    const float mean = mk_div(c.sum(mine, 0), float(a.n));
    const float r = mk_div(1.0f, mk_sqrt(mk_add(mean, a.eps)));
    for (int i = mk_thread(); i < a.n; i += MK_COMPUTERS) {
      const float w = mk_load_coherent(a.w + i);
      mk_store(a.y + int64_t(tile) * a.n + i, mk_mul(mk_mul(mk_load_coherent(x + i), r), w));
    }
  }
};
