// The select body: one wanted row, 16 bytes a thread at a time.
struct select : MkBody {
  MK_DEVICE static void compute(const SelectArgs& a, int tile, MkCompute&) {
    if (tile >= mk_load_coherent(a.count)) return;
    const float* row = a.x + int64_t(mk_load_coherent(a.index + tile)) * a.k;
#pragma unroll 1
    for (int i = mk_thread() * 4; i < a.k; i += MK_COMPUTERS * 4)
      mk_store(reinterpret_cast<mk_float4*>(a.y + int64_t(tile) * a.k + i),
               mk_load_coherent4(row + i));
  }
};
