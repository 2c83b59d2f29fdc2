// The matmul body: 32 output columns of every row; a thread takes whole outputs, in turn.
struct matmul : MkBody {
  enum { COLUMNS = 32 };

  MK_DEVICE static void compute(const MatmulArgs& a, int tile, MkCompute&) {
    for (int i = mk_thread(); i < a.rows * COLUMNS; i += MK_COMPUTERS) {
      const int row = i / COLUMNS, column = tile * COLUMNS + i % COLUMNS;
      if (column >= a.n) continue;
      const float* x = a.x + int64_t(row) * a.k;
      const float* w = a.w + int64_t(column) * a.k;
      float sum = 0.0f;
      for (int k = 0; k < a.k; k++) sum = mk_fma(mk_load_coherent(x + k), mk_load_immutable(w + k), sum);
      mk_store(a.y + int64_t(row) * a.n + column, sum);
    }
  }
};
