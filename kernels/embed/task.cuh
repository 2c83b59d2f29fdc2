// The embed body: one token's row of the table, 16 bytes a thread at a time.
struct embed : MkBody {
  MK_DEVICE static void compute(const EmbedArgs& a, int tile, MkCompute&) {
    if (tile >= mk_load_coherent(a.count)) return;
    enum { WIDTH = 16 / sizeof(mk_weight) };
    const mk_weight* row = a.table + int64_t(mk_load_coherent(a.tokens + tile)) * a.k;
#pragma unroll 1
    for (int i = mk_thread_here() * WIDTH; i < a.k; i += MK_COMPUTERS * WIDTH) {
      const mk_word4 x = mk_load_immutable16(row + i);
      widen(a.y + int64_t(tile) * a.k + i, x, row);
    }
  }
  MK_DEVICE static void widen(float* y, const mk_word4& x, const mk_bf16*) {
    for (int i = 0; i < 4; i++) {  // the lower half is the earlier column
      mk_store(y + 2 * i, mk_widen(static_cast<mk_bf16>(x.v[i])));
      mk_store(y + 2 * i + 1, mk_widen(static_cast<mk_bf16>(x.v[i] >> 16)));
    }
  }
  MK_DEVICE static void widen(float* y, const mk_word4& x, const float*) {
    for (int i = 0; i < 4; i++) mk_store(y + i, mk_float(x.v[i]));
  }
};
