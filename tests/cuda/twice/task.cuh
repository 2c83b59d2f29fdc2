// A first port: compute alone. y[tile] = 2 x[tile], by way of the arena.
struct twice : MkBody {
  MK_DEVICE static void compute(const TwiceArgs& a, int tile, MkCompute& c) {
    float* row = reinterpret_cast<float*>(c.arena);
    c.sync();  // the tile before this one has been read
    for (int i = mk_thread(); i < a.k; i += MK_COMPUTERS)
      row[i] = mk_load_coherent(a.x + tile * a.k + i);
    c.sync();
    for (int i = mk_thread(); i < a.k; i += MK_COMPUTERS) {
      const int j = a.k - 1 - i;  // another thread's
      mk_store(a.y + tile * a.k + j, mk_add(row[j], row[j]));
    }
  }
};
