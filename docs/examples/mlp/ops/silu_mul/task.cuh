// The silu_mul body: one row, its columns to the 256 compute threads in turn.
struct silu_mul : MkBody {
  MK_DEVICE static void compute(const SiluMulArgs& a, int tile, MkCompute&) {
    const float* x = a.x + int64_t(tile) * 2 * a.n;
    for (int i = mk_thread(); i < a.n; i += MK_COMPUTERS) {
      const float gate = mk_load_coherent(x + i);
      const float below = mk_add(1.0f, mk_exp2(mk_mul(gate, -1.4426950408889634f)));
      const float silu = mk_mul(gate, mk_div(1.0f, below));
      mk_store(a.y + int64_t(tile) * a.n + i, mk_mul(silu, mk_load_coherent(x + a.n + i)));
    }
  }
};
