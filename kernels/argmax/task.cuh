// The argmax body: one row. A thread takes vectors of 4 columns (single columns where rows are not
// aligned) in turn; the larger value, then the lower index, wins at every join.
struct argmax : MkBody {
  enum { FLIGHT = 8 };  // vectors that a thread has under way

  struct Best {
    float value;
    int32_t index;
    int32_t strange;  // some value was not finite
    MK_DEVICE void take(float x, int32_t at) {
      strange |= !(mk_add(x, -x) == 0.0f);
      if (x > value || (x == value && at < index)) value = x, index = at;
    }
    MK_DEVICE void join(const Best& other) {
      strange |= other.strange;
      if (other.value > value || (other.value == value && other.index < index))
        value = other.value, index = other.index;
    }
  };

  MK_DEVICE static void compute(const ArgmaxArgs& a, int tile, MkCompute& c) {
    if (tile >= mk_load_coherent(a.count)) return;
    const float* x = a.x + int64_t(tile) * a.n;
    Best best = {mk_load_coherent(x), 0, 0};
    const int whole = a.n % 4 ? 0 : a.n;  // columns in aligned vectors
#pragma unroll 1
    for (int first = mk_thread() * 4; first < whole; first += MK_COMPUTERS * 4 * FLIGHT) {
      mk_float4 v[FLIGHT] = {};
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        const int at = first + i * MK_COMPUTERS * 4;
        if (at < whole) v[i] = mk_load_coherent4(x + at);
      }
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        const int at = first + i * MK_COMPUTERS * 4;
        if (at >= whole) continue;
        for (int j = 0; j < 4; j++) best.take(v[i].v[j], at + j);
      }
    }
#pragma unroll 1
    for (int at = whole + mk_thread(); at < a.n; at += MK_COMPUTERS)
      best.take(mk_load_coherent(x + at), at);
    for (int mask = 16; mask; mask /= 2)
      best.join({mk_shuffle_xor(best.value, mask), mk_shuffle_xor(best.index, mask),
                 mk_shuffle_xor(best.strange, mask)});
    Best* warps = reinterpret_cast<Best*>(c.arena);
    c.sync();  // the tile before this one has been read
    if (mk_lane() == 0) warps[mk_warp()] = best;
    c.sync();
    if (mk_thread() != 0) return;
    for (int warp = 1; warp < MK_COMPUTE_WARPS; warp++) best.join(warps[warp]);
    mk_store(a.y + tile, best.strange ? -1 : best.index);
  }
};
