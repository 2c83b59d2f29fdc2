// The sample body: one block of one row's columns. A thread takes up to four vectors of four columns;
// the larger score, then the lower index, wins at every join, and a logit that is not finite counts
// as the largest of all, with the index -1. Loops are not unrolled: the code runs once a step.
struct sample : MkBody {
  enum {
    COLUMNS = 4096,
    FLIGHT = COLUMNS / (MK_COMPUTERS * 4),  // vectors that a thread has under way
  };

  struct Best {
    float value;
    int32_t at;
    MK_DEVICE void join(const Best& other) {
      if (other.value > value || (other.value == value && other.at < at)) *this = other;
    }
  };

  MK_DEVICE static void early(const SampleArgs& a, const MkRun&, const MkStage& s) {
    if (s.thread == 0) s.notes[0] = mk_load_immutable(a.count);
  }

  MK_DEVICE static void compute(const SampleArgs& a, int tile, MkCompute& c) {
    const int blocks = (a.n + COLUMNS - 1) / COLUMNS;
    const int row = tile / blocks, from = tile % blocks * COLUMNS + mk_thread() * 4;
    const int end = from / COLUMNS * COLUMNS + COLUMNS < a.n ? from / COLUMNS * COLUMNS + COLUMNS
                                                             : a.n;
    Best best = {mk_float(0xff800000u), 0x7fffffff};
    if (row < c.notes[0]) {
      mk_float4 x[FLIGHT];
#pragma unroll
      for (int i = 0; i < FLIGHT; i++)
        x[i] = four(a.x + int64_t(row) * a.n, from + i * MK_COMPUTERS * 4, end, a.n % 4 == 0);
      const mk_word4 way = mk_load_immutable16(a.sampling + row * 4);
      const float temperature = mk_float(way.v[0]);
      uint32_t position = 0;
      if (temperature > 0.0f)
        position = mk_load_immutable(a.rows + 2 * mk_load_immutable(a.index + row) + 1);
#pragma unroll 1
      for (int at = from; at < end; at += MK_COMPUTERS * 4) {
        uint32_t words[4] = {uint32_t(at) / 4, position, way.v[3], 0};
        if (temperature > 0.0f) philox(words, way.v[1], way.v[2]);
#pragma unroll 1
        for (int i = 0; i < 4 && at + i < end; i++) {
          const float logit = x[0].v[0];
          const float score = temperature > 0.0f
                                  ? mk_add(mk_div(logit, temperature), noise(words[0]))
                                  : logit;
          const bool finite = mk_add(logit, -logit) == 0.0f;
          best.join({finite ? score : mk_float(0x7f800000), finite ? at + i : -1});
          for (int j = 0; j < 3; j++) words[j] = words[j + 1], x[0].v[j] = x[0].v[j + 1];
        }
#pragma unroll
        for (int i = 0; i + 1 < FLIGHT; i++) x[i] = x[i + 1];
      }
    }
    for (int mask = 16; mask; mask /= 2)
      best.join({mk_shuffle_xor(best.value, mask), mk_shuffle_xor(best.at, mask)});
    if (mk_lane() == 0) *reinterpret_cast<Best*>(c.partial) = best;
  }

  MK_DEVICE static void store(const SampleArgs& a, int tile, const MkStore& s) {
    const int row = tile / ((a.n + COLUMNS - 1) / COLUMNS);
    if (mk_lane() != 0 || row >= s.notes[0]) return;
    Best best = *reinterpret_cast<const Best*>(s.partials);
    for (int warp = 1; warp < MK_COMPUTE_WARPS; warp++)
      best.join(*reinterpret_cast<const Best*>(s.partials + warp * MK_PARTIAL));
    mk_store(a.best + tile, best.at < 0 ? mk_float(0x7fc00000) : best.value);
    mk_store(a.at + tile, best.at);
  }

  // Four columns; those from `end` on mean nothing.
  MK_DEVICE static mk_float4 four(const float* x, int at, int end, bool aligned) {
    mk_float4 v = {};
    if (at >= end) return v;
    if (aligned) return mk_load_coherent4(x + at);
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (at + i < end) v.v[i] = mk_load_coherent(x + at + i);
    return v;
  }

  // Philox4x32-10 of a counter, in its place, and a key.
  MK_DEVICE static void philox(uint32_t (&c)[4], uint32_t k0, uint32_t k1) {
#pragma unroll 1
    for (int round = 0; round < 10; round++) {
      const uint64_t p0 = uint64_t(c[0]) * 0xD2511F53u, p1 = uint64_t(c[2]) * 0xCD9E8D57u;
      c[0] = uint32_t(p1 >> 32) ^ c[1] ^ k0;
      c[2] = uint32_t(p0 >> 32) ^ c[3] ^ k1;
      c[1] = uint32_t(p1);
      c[3] = uint32_t(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  // -log(-log(1 - v)) of a word as a number v between 0 and 1; fine where v is small.
  MK_DEVICE static float noise(uint32_t word) {
    const float wide = mk_mul(mk_add(static_cast<float>(word), 0.5f), 2.3283064e-10f);
    const float v = wide < 0.99999994f ? wide : 0.99999994f;
    return -log(-(v < 0.25f ? log(-v, 0.0f) : log(mk_add(1.0f, -v))));
  }
  MK_DEVICE static float log(float x) {  // of a normal positive x
    union {
      float value;
      int32_t bits;
    } u = {x};
    const int32_t n = (u.bits - 0x3f3504f3) >> 23;  // x = 2^n (1 + f), 1 + f around 1
    return log(mk_add(mk_float(u.bits - n * (1 << 23)), -1.0f), static_cast<float>(n));
  }
  MK_DEVICE static float log(float f, float n) {  // log(1 + f) + n ln 2, by Cephes' logf
    const float z = mk_mul(f, f);
    float p = 7.0376836292e-2f;
    p = mk_add(mk_mul(p, f), -1.1514610310e-1f);
    p = mk_add(mk_mul(p, f), 1.1676998740e-1f);
    p = mk_add(mk_mul(p, f), -1.2420140846e-1f);
    p = mk_add(mk_mul(p, f), 1.4249322787e-1f);
    p = mk_add(mk_mul(p, f), -1.6668057665e-1f);
    p = mk_add(mk_mul(p, f), 2.0000714765e-1f);
    p = mk_add(mk_mul(p, f), -2.4999993993e-1f);
    p = mk_add(mk_mul(p, f), 3.3333331174e-1f);
    const float y = mk_add(mk_mul(mk_mul(p, f), z), mk_mul(-2.12194440e-4f, n));
    return mk_add(mk_add(f, mk_add(y, -mk_mul(0.5f, z))), mk_mul(0.693359375f, n));
  }
};
