// What the ops share that norm rows: RMSNorm, or LayerNorm, which takes the mean off first.
// Order: vectors of 4 columns go to the threads in turn; a thread sums column after column; lanes are
// joined in halves, then the warps in order. mean = sum of x / k; rest = sum of (x - mean) / k, what
// rounding left of the mean; centred = (x - mean) - rest; variance = sum of centred^2 / k by fused
// multiply-adds; y = (centred * r) * w, r = 1 / sqrt(variance + eps). Of a row whose mean is not
// taken off, zeros are, which rounds nothing.
struct MkNorm {
  enum { FLIGHT = 4 };  // vectors that a thread has under way
  const float* w;       // [k] the norm's weights, which `fetch` has left there
  float* row;           // [k] behind them; a thread's own vectors alone
  int k;
  int thread, threads;  // all that compute, or a warp's lanes

  // Where `fetch` leaves the weights, and rows of k behind them, one for each warp or only one.
  MK_DEVICE static MkNorm of(const MkCompute& c, int k, bool warps) {
    float* w = reinterpret_cast<float*>(c.arena);
    if (warps) return {w, w + (1 + mk_warp()) * k, k, mk_lane(), 32};
    return {w, w + k, k, mk_thread(), MK_COMPUTERS};
  }

  // Brings the weights to the stage buffer; they are immutable, so before the record's waits.
  MK_DEVICE static void fetch(const MkStage& s, const float* w, int k) {
    enum { FLIGHT = 8 };
    float* to = reinterpret_cast<float*>(s.buffer);
#pragma unroll 1
    for (int first = s.thread * 4; first < k; first += MK_STAGERS * 4 * FLIGHT) {
      mk_word4 v[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) v[i] = mk_load_immutable16(w + place(first, i, MK_STAGERS, k));
#pragma unroll
      for (int i = 0; i < FLIGHT; i++)
        *reinterpret_cast<mk_word4*>(to + place(first, i, MK_STAGERS, k)) = v[i];
    }
  }
  // The column of a thread's i-th vector, or, if that is behind the end, of the first one again: a
  // branch around each load would be more code than what it saves.
  MK_DEVICE static int place(int first, int i, int threads, int k) {
    const int column = first + i * threads * 4;
    return column < k ? column : first;
  }

  // The thread's vectors of x.
  MK_DEVICE void read(const float* x, MkGuard& guard) const {
#pragma unroll 1
    for (int first = thread * 4; first < k; first += threads * 4 * FLIGHT) {
      mk_float4 v[FLIGHT];
      int from[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) from[i] = place(first, i, threads, k);
      mk_await(v, x, from, guard);
#pragma unroll
      for (int i = 0; i < FLIGHT; i++) *at(from[i]) = v[i];
    }
  }

  MK_DEVICE mk_float4* at(int column) const {
    return reinterpret_cast<mk_float4*>(row + column);
  }

  // y = the norm of the row, whose mean is taken off if `centre` says so.
  MK_DEVICE void write(const MkCompute& c, float* y, float eps, bool centre) const {
    float mean = 0.0f, rest = 0.0f, r = 0.0f;
#pragma unroll 1
    for (int pass = centre ? 0 : 2; pass < 3; pass++) {
      float sum = 0.0f;
#pragma unroll 1
      for (int i = thread * 4; i < k; i += threads * 4) {
        const mk_float4 v = *at(i);
        for (int j = 0; j < 4; j++) {
          const float centred = mk_add(mk_add(v.v[j], -mean), -rest);
          sum = pass == 2 ? mk_fma(centred, centred, sum) : mk_add(sum, centred);
        }
      }
      sum = mk_div(threads == 32 ? mk_warp_sum(sum) : c.sum(sum, pass), float(k));
      if (pass == 0) mean = sum;
      else if (pass == 1) rest = sum;
      else r = mk_div(1.0f, mk_sqrt(mk_add(sum, eps)));
    }
#pragma unroll 1
    for (int i = thread * 4; i < k; i += threads * 4) {
      const mk_float4 weight = *reinterpret_cast<const mk_float4*>(w + i);
      mk_float4 v = *at(i);
      for (int j = 0; j < 4; j++) {
        const float centred = mk_add(mk_add(v.v[j], -mean), -rest);
        v.v[j] = mk_mul(mk_mul(centred, r), weight.v[j]);
      }
      mk_store(reinterpret_cast<mk_float4*>(y + i), v);
    }
  }
};
