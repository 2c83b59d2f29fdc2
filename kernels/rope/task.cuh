// The rope body: one token, a rotated pair a thread at a time, to scratch or into the cache.
struct rope : MkBody {
  MK_DEVICE static void compute(const RopeArgs& a, int tile, MkCompute&) {
    if (tile >= mk_load_coherent(a.count)) return;
    const int sequence = mk_load_coherent(a.rows + 2 * tile);
    const int position = mk_load_coherent(a.rows + 2 * tile + 1);
    const int half = a.head_dim / 2;
    const int64_t row = int64_t(tile) * a.heads * a.head_dim;
    int page = 0;
    if (a.pages)
      page = mk_load_coherent(a.page_table + sequence * a.pages_per_sequence + position / a.page);
#pragma unroll 1
    for (int pair = mk_thread(); pair < a.heads * half; pair += MK_COMPUTERS) {
      const int head = pair / half, i = pair % half;
      const int p_at = a.half_split ? i : 2 * i, q_at = a.half_split ? i + half : 2 * i + 1;
      const float* x = a.x + row + head * a.head_dim;
      float p = mk_load_coherent(x + p_at), q = mk_load_coherent(x + q_at);
      if (a.rope) {
        const float* angles = a.rope + int64_t(position) * a.head_dim + i;
        turn(p, q, mk_load_coherent(angles), mk_load_coherent(angles + half));
      }
      if (a.y) {
        mk_store(a.y + row + head * a.head_dim + p_at, p);
        mk_store(a.y + row + head * a.head_dim + q_at, q);
      } else {
        const int64_t slot = (int64_t(page) * a.heads + head) * a.page + position % a.page;
        keep(a.pages + slot * a.head_dim + p_at, p);
        keep(a.pages + slot * a.head_dim + q_at, q);
      }
    }
  }
  MK_DEVICE static void turn(float& p, float& q, float c, float s) {
    const float before = p;
    p = mk_fma(p, c, -mk_mul(q, s));
    q = mk_fma(q, c, mk_mul(before, s));
  }
  MK_DEVICE static void keep(mk_bf16* slot, float x) { mk_store(slot, mk_narrow(x)); }
  MK_DEVICE static void keep(float* slot, float x) { mk_store(slot, x); }
};
