// The body of example for the CUDA machine: one row; the 256 compute threads take its columns in
// turn. What other workers may have written in this step is read with mk_load_coherent.
struct example : MkBody {
  MK_DEVICE static void compute(const ExampleArgs& a, int tile, MkCompute&) {
    const int64_t row = int64_t(tile) * a.n;
    for (int i = mk_thread(); i < a.n; i += MK_COMPUTERS)
      mk_store(a.y + row + i, mk_mul(a.factor, mk_load_coherent(a.x + row + i)));
  }
};
