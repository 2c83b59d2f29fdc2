// The rmsnorm body: one token. A single group is shared out to all threads, several to the warps.
// Order: vectors of 4 columns go to the threads (of the block or of the warp) in turn; a thread
// sums its squares by fused multiply-adds, column after column; lanes are joined in halves, then a
// single group's warps in order. The mean by one division; r = 1 / sqrt; y = (x * r) * w.
struct rmsnorm : MkBody {
  enum { FLIGHT = 4 };  // vectors that a thread has under way

  MK_DEVICE static void compute(const RmsnormArgs& a, int tile, MkCompute& c) {
    if (tile >= mk_load_coherent(a.count)) return;
    const int64_t at = int64_t(tile) * a.groups * a.k;
    if (a.groups == 1) {
      float* kept = reinterpret_cast<float*>(c.arena);  // [k]; a thread's own vectors alone
      const float sum = c.sum(squares(a, a.x + at, kept, mk_thread(), MK_COMPUTERS), 0);
      scale(a, sum, kept, a.y + at, mk_thread(), MK_COMPUTERS);
      return;
    }
#pragma unroll 1
    for (int group = mk_warp(); group < a.groups; group += MK_COMPUTE_WARPS) {
      float* kept = reinterpret_cast<float*>(c.arena) + mk_warp() * a.k;
      const int64_t here = at + int64_t(group) * a.k;
      const float sum = mk_warp_sum(squares(a, a.x + here, kept, mk_lane(), 32));
      scale(a, sum, kept, a.y + here, mk_lane(), 32);
    }
  }

  // the thread's squares; its columns stay in `kept`
  MK_DEVICE static float squares(const RmsnormArgs& a, const float* x, float* kept, int thread,
                                 int threads) {
    float sum = 0.0f;
#pragma unroll 1
    for (int first = thread * 4; first < a.k; first += threads * 4 * FLIGHT) {
      mk_float4 v[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++)
        if (first + i * threads * 4 < a.k) v[i] = mk_load_coherent4(x + first + i * threads * 4);
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) {
        if (first + i * threads * 4 >= a.k) continue;
        *reinterpret_cast<mk_float4*>(kept + first + i * threads * 4) = v[i];
        for (int j = 0; j < 4; j++) sum = mk_fma(v[i].v[j], v[i].v[j], sum);
      }
    }
    return sum;
  }

  MK_DEVICE static void scale(const RmsnormArgs& a, float sum, const float* kept, float* y,
                              int thread, int threads) {
    const float r = mk_div(1.0f, mk_sqrt(mk_add(mk_div(sum, float(a.k)), a.eps)));
#pragma unroll 1
    for (int i = thread * 4; i < a.k; i += threads * 4) {
      const mk_word4 w = mk_load_immutable16(a.w + i);
      mk_float4 v = *reinterpret_cast<const mk_float4*>(kept + i);
      for (int j = 0; j < 4; j++) v.v[j] = mk_mul(mk_mul(v.v[j], r), mk_float(w.v[j]));
      mk_store(reinterpret_cast<mk_float4*>(y + i), v);
    }
  }
};
