// What the ops that choose tokens share: a row's way to choose, word by word; noise; weights; the
// order of values. Every step is rounded to float32 or is whole numbers.
struct MkDraw {
  enum {  // a row's words; temperature 0, and all others 0: the largest logit
    TEMPERATURE,  // float32 bits
    LOW, HIGH,    // a seed's words
    CHOICE,
    FLAGS,
    TOP_K,        // so many stay; 0: all
    TOP_P,        // a share as a fraction of 2^32 without sign; 0: all
    MIN_P,        // float32 bits of its logarithm
    REPETITION, FREQUENCY, PRESENCE,  // float32 bits of the penalties
    TOLD,         // 1 + rivals whose log probabilities are wanted; 0: none, nor the token's own
    GIVEN,        // 1 + the token that stands in for the chosen one; 0: none
    WORDS = 16,
  };
  enum {  // flags: what changes the logits; CUTS goes with MIN_P
    REPEATS = 1, COUNTS = 2, BIASED = 4, EARLY = 8, MASKED = 16, CUTS = 32, EDITS = 31,
  };
  enum { PROMPT = 1 << 28, END = 1 << 29 };  // of a token's tally; below: its times in the output
  enum { COLUMNS = 4096, GROUP = 128 };      // of a block, and of a group within it

  // Who am I, asked anew each time: a step chooses tokens once, so nothing that follows from it is to
  // be kept in registers through the other ops' code.
  MK_DEVICE static int thread() { return mk_thread_here(); }
  MK_DEVICE static int lane() { return thread() % 32; }
  MK_DEVICE static int warp() { return thread() / 32; }

  int32_t w[WORDS];
  MK_DEVICE explicit MkDraw(const int32_t* way) {
#pragma unroll
    for (int i = 0; i < WORDS / 4; i++) {
      const mk_word4 four = mk_load_immutable16(way + i * 4);
#pragma unroll
      for (int j = 0; j < 4; j++) w[i * 4 + j] = four.v[j];
    }
  }
  MK_DEVICE float temperature() const { return mk_float(w[TEMPERATURE]); }
  MK_DEVICE bool cut() const {  // whether tokens are left out before the draw
    return temperature() > 0.0f && (w[TOP_K] != 0 || w[TOP_P] != 0 || (w[FLAGS] & CUTS));
  }

  // The noise of column `at`; Philox4x32-10 of the columns in fours.
  MK_DEVICE void words(uint32_t (&c)[4], int at, int position) const {
    c[0] = uint32_t(at) / 4;
    c[1] = position;
    c[2] = w[CHOICE];
    c[3] = 0;
    uint32_t k0 = w[LOW], k1 = w[HIGH];
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
  MK_DEVICE static int32_t bits(float x) {
    union {
      float value;
      int32_t bits;
    } u = {x};
    return u.bits;
  }
  MK_DEVICE static float log(float x) {  // of a normal positive x
    const int32_t n = (bits(x) - 0x3f3504f3) >> 23;  // x = 2^n (1 + f), 1 + f around 1
    return log(mk_add(mk_float(bits(x) - n * (1 << 23)), -1.0f), static_cast<float>(n));
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
  MK_DEVICE static float exp(float x) {  // of an x that is not above 0, by Cephes' expf
    x = x < -87.0f ? -87.0f : x;
    const float magic = 12582912.0f;  // added and taken off again, it rounds to a whole number
    const float n = mk_add(mk_add(mk_mul(x, 1.44269504f), magic), -magic);
    const float r = mk_fma(n, 2.12194440e-4f, mk_fma(n, -0.693359375f, x));
    float p = 1.9875691500e-4f;
    p = mk_fma(p, r, 1.3981999507e-3f);
    p = mk_fma(p, r, 8.3334519073e-3f);
    p = mk_fma(p, r, 4.1665795894e-2f);
    p = mk_fma(p, r, 1.6666665459e-1f);
    p = mk_fma(p, r, 5.0000001201e-1f);
    p = mk_add(mk_fma(mk_mul(r, r), p, r), 1.0f);
    return mk_mul(p, mk_float((static_cast<int32_t>(n) + 127) << 23));
  }

  static constexpr float ONE = 1099511627776.0f;  // 2^40, the weight of the likeliest
  // e^(value - largest) as a whole number of 2^-40: sums of them are the same in any order.
  MK_DEVICE static int64_t weight(float value, float largest) {
    return static_cast<int64_t>(mk_mul(exp(mk_add(value, -largest)), ONE));
  }
  // A number that is larger for the larger of two values, and for the lower index of equal ones.
  MK_DEVICE static uint64_t place(float value, int index) {
    const int32_t b = bits(mk_add(value, 0.0f));  // -0 becomes 0
    const uint32_t order = b < 0 ? ~uint32_t(b) : uint32_t(b) | 0x80000000u;
    return uint64_t(order) << 32 | (0xffffffffu - uint32_t(index));
  }
  // The lowest place of a value above -infinity.
  static constexpr uint64_t LOWEST = uint64_t(0x00800000u) << 32;

  // The best of some: the larger value, then the lower index.
  struct Best {
    float value;
    int32_t at;
    MK_DEVICE void join(const Best& other) {
      if (other.value > value || (other.value == value && other.at < at)) *this = other;
    }
    MK_DEVICE void join_warp() {
      for (int mask = 16; mask; mask /= 2)
        join({mk_shuffle_xor(value, mask), mk_shuffle_xor(at, mask)});
    }
  };
  MK_DEVICE static Best nothing() { return {mk_float(0xff800000u), 0x7fffffff}; }

  // Four columns; those from `end` on are -infinity.
  MK_DEVICE static mk_float4 four(const float* x, int at, int end, bool aligned) {
    mk_float4 v;
#pragma unroll
    for (int i = 0; i < 4; i++) v.v[i] = mk_float(0xff800000u);
    if (at >= end) return v;
    if (aligned) return mk_load_coherent4(x + at);
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (at + i < end) v.v[i] = mk_load_coherent(x + at + i);
    return v;
  }
};
