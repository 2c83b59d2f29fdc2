// The layernorm body: one token.
// Order: vectors of 4 columns go to the threads in turn; a thread sums column after column; lanes
// are joined in halves, then the warps in order. mean = sum of x / k; rest = sum of (x - mean) / k,
// what rounding left of the mean; centred = (x - mean) - rest; variance = sum of centred^2 / k.
struct layernorm : MkBody {
  enum { FLIGHT = 4, NEXT = MK_COMPUTERS * 4 };  // vectors under way; columns to a thread's next

  MK_DEVICE static void compute(const LayernormArgs& a, int tile, MkCompute& c) {
    if (tile >= mk_load_coherent(a.count)) return;
    const float* x = a.x + int64_t(tile) * a.k;
    float* y = a.y + int64_t(tile) * a.k;
    float* kept = reinterpret_cast<float*>(c.arena);  // [k]; a thread's own vectors alone
    const float k = float(a.k);
    const float mean = mk_div(c.sum(read(x, a.k, kept), 0), k);
    float sum = 0.0f;
#pragma unroll 1
    for (int i = mk_thread() * 4; i < a.k; i += NEXT)
      for (int j = i; j < i + 4; j++) sum = mk_add(sum, mk_add(kept[j], -mean));
    const float rest = mk_div(c.sum(sum, 1), k);
    sum = 0.0f;
#pragma unroll 1
    for (int i = mk_thread() * 4; i < a.k; i += NEXT)
      for (int j = i; j < i + 4; j++) {
        const float centred = mk_add(mk_add(kept[j], -mean), -rest);
        sum = mk_fma(centred, centred, sum);
      }
    const float r = mk_div(1.0f, mk_sqrt(mk_add(mk_div(c.sum(sum, 2), k), a.eps)));
#pragma unroll 1
    for (int i = mk_thread() * 4; i < a.k; i += NEXT) {
      const mk_word4 w = mk_load_immutable16(a.w + i);
      mk_float4 v = *reinterpret_cast<const mk_float4*>(kept + i);
      for (int j = 0; j < 4; j++) {
        const float centred = mk_add(mk_add(v.v[j], -mean), -rest);
        v.v[j] = mk_mul(mk_mul(centred, r), mk_float(w.v[j]));
      }
      mk_store(reinterpret_cast<mk_float4*>(y + i), v);
    }
  }

  // the sum of the thread's columns, which stay in `kept`
  MK_DEVICE static float read(const float* x, int k, float* kept) {
    float sum = 0.0f;
#pragma unroll 1
    for (int first = mk_thread() * 4; first < k; first += NEXT * FLIGHT) {
      mk_float4 v[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++)
        if (first + i * NEXT < k) v[i] = mk_load_coherent4(x + first + i * NEXT);
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        if (first + i * NEXT >= k) continue;
        *reinterpret_cast<mk_float4*>(kept + first + i * NEXT) = v[i];
        for (int j = 0; j < 4; j++) sum = mk_add(sum, v[i].v[j]);
      }
    }
    return sum;
  }
};
