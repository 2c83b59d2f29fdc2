// The next token's best candidate of each 4096 columns on a GPU, a block of 256 threads each. An
// ordinary kernel.
//   x [rows, n] float32 logits; sampling [rows, 16]: a float32 temperature's bits (0: no noise), a
//   seed's low and high word, the number of the choice, flags, top_k, top_p, min_p, three penalties,
//   1 + rivals told; index [rows]: a row's token, whose sequence and position are rows[token]
//   mask [sequences, padded / 32] allowed columns; bias [sequences, padded]; tally [sequences,
//   padded] a column's times in the output, + 2^28 in the prompt, + 2^29 an end
//   best [rows, blocks] float32: the largest score + noise, NaN where an x is not finite; at [rows,
//   blocks]: its lowest column, -1 where an x is not finite
//   scores [rows, padded] of rows that are edited or cut; peaks and sums [rows, 2, groups of 128] of
//   rows that are cut (scores) and told (x): the largest, and the sum of e^(value - largest)
// The noise is Gumbel's, of Philox4x32-10 words that depend on (seed, choice, position, column).

enum { COLUMNS = 4096, GROUP = 128 };
enum { TEMPERATURE, LOW, HIGH, CHOICE, FLAGS, TOP_K, TOP_P, MIN_P, REPETITION, FREQUENCY, PRESENCE,
       TOLD, WORDS = 16 };
enum { REPEATS = 1, COUNTS = 2, BIASED = 4, EARLY = 8, MASKED = 16, CUTS = 32, EDITS = 31 };
enum { PROMPT = 1 << 28, END = 1 << 29 };

__device__ float log_near(float f, float n) {  // log(1 + f) + n ln 2 (coefficients of Cephes' logf)
  const float c[9] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                      -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                      2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  const float z = __fmul_rn(f, f);
  float p = c[0];
#pragma unroll
  for (int i = 1; i < 9; i++) p = __fadd_rn(__fmul_rn(p, f), c[i]);
  const float y = __fadd_rn(__fmul_rn(__fmul_rn(p, f), z), __fmul_rn(-2.12194440e-4f, n));
  const float near = __fadd_rn(f, __fadd_rn(y, -__fmul_rn(0.5f, z)));
  return __fadd_rn(near, __fmul_rn(0.693359375f, n));
}

__device__ float log_of(float x) {  // of a normal positive x
  const int bits = static_cast<int>(__float_as_uint(x)), n = (bits - 0x3f3504f3) >> 23;
  return log_near(__fadd_rn(__uint_as_float(bits - n * (1 << 23)), -1.0f), static_cast<float>(n));
}

__device__ float exp_of(float x) {  // of an x that is not above 0 (coefficients of Cephes' expf)
  const float c[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                      4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  x = x < -87.0f ? -87.0f : x;
  const float n = rintf(__fmul_rn(x, 1.44269504f));
  const float r = __fmaf_rn(n, 2.12194440e-4f, __fmaf_rn(n, -0.693359375f, x));
  float p = c[0];
#pragma unroll
  for (int i = 1; i < 6; i++) p = __fmaf_rn(p, r, c[i]);
  p = __fadd_rn(__fmaf_rn(__fmul_rn(r, r), p, r), 1.0f);
  return __fmul_rn(p, __uint_as_float((static_cast<int>(n) + 127) << 23));
}

__device__ float gumbel(unsigned word) {
  const float wide = __fmul_rn(__fadd_rn(static_cast<float>(word), 0.5f), 2.3283064e-10f);
  const float v = fminf(wide, 0.99999994f);
  return -log_of(-(v < 0.25f ? log_near(-v, 0.0f) : log_of(__fadd_rn(1.0f, -v))));
}

__device__ void philox(unsigned (&c)[4], unsigned k0, unsigned k1) {
  for (int round = 0; round < 10; round++) {
    const unsigned long long p0 = c[0] * 0xD2511F53ull, p1 = c[2] * 0xCD9E8D57ull;
    c[0] = static_cast<unsigned>(p1 >> 32) ^ c[1] ^ k0;
    c[2] = static_cast<unsigned>(p0 >> 32) ^ c[3] ^ k1;
    c[1] = static_cast<unsigned>(p1);
    c[3] = static_cast<unsigned>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

__device__ float real(const int* way, int word) { return __uint_as_float(way[word]); }

// A logit changed by what its column's tally, bias and mask are.
__device__ float edited(float x, const int* way, int tally, float bias, bool allowed) {
  const int flags = way[FLAGS], times = tally & (PROMPT - 1);
  if (flags & REPEATS && (times || tally & PROMPT)) {
    const float penalty = real(way, REPETITION);
    x = x > 0.0f ? __fdiv_rn(x, penalty) : __fmul_rn(x, penalty);
  }
  if (flags & COUNTS && times)
    x = __fadd_rn(x, -__fadd_rn(__fmul_rn(static_cast<float>(times), real(way, FREQUENCY)),
                                real(way, PRESENCE)));
  if (flags & BIASED) x = __fadd_rn(x, bias);
  const bool forbidden = (flags & EARLY && tally & END) || (flags & MASKED && !allowed);
  return forbidden ? -__uint_as_float(0x7f800000) : x;
}

// The largest value of each 128 threads, and the sum of e^(value - largest), halves joined first.
__device__ void weigh(float v, float* shared, float* peak, float* sum, bool there) {
  const int thread = threadIdx.x, lane = thread % GROUP;
  __syncthreads();
  shared[thread] = v;
  for (int half = GROUP / 2; half; half /= 2) {
    __syncthreads();
    if (lane < half) shared[thread] = fmaxf(shared[thread], shared[thread + half]);
  }
  __syncthreads();
  const float top = __fadd_rn(shared[thread - lane], 0.0f);
  __syncthreads();
  shared[thread] = top == -__uint_as_float(0x7f800000) ? 0.0f : exp_of(__fadd_rn(v, -top));
  for (int half = GROUP / 2; half; half /= 2) {
    __syncthreads();
    if (lane < half) shared[thread] = __fadd_rn(shared[thread], shared[thread + half]);
  }
  if (lane == 0 && there) {
    *peak = top;
    *sum = shared[thread];
  }
}

extern "C" __global__ void __launch_bounds__(256)
    sample(const float* x, const int* sampling, const int* index, const int* rows, const int* mask,
           const float* bias, const int* tally, float* scores, float* best, int* at, float* peaks,
           float* sums, int n) {
  extern __shared__ __align__(16) char shared[];
  float* values = reinterpret_cast<float*>(shared);  // [256]
  int* columns = reinterpret_cast<int*>(values + 256);
  const int parts = (n + COLUMNS - 1) / COLUMNS, thread = threadIdx.x;
  const int groups = (n + GROUP - 1) / GROUP, padded = groups * GROUP;
  const int row = blockIdx.x / parts, first = blockIdx.x % parts * COLUMNS;
  const int* way = sampling + row * WORDS;
  const int sequence = rows[2 * index[row]], edits = way[FLAGS] & EDITS;
  const float temperature = real(way, TEMPERATURE), none = -__uint_as_float(0x7f800000);
  const bool cut = temperature > 0.0f && (way[TOP_K] || way[TOP_P] || way[FLAGS] & CUTS);
  x += static_cast<long long>(row) * n;
  scores += static_cast<long long>(row) * padded;
  mask += static_cast<long long>(sequence) * padded / 32;
  bias += static_cast<long long>(sequence) * padded;
  tally += static_cast<long long>(sequence) * padded;
  float value = none;
  int column = 0x7fffffff;
  bool strange = false;
  for (int from = first; from < first + COLUMNS && from < padded; from += 256) {
    const int here = from + thread, group = here / GROUP;
    float v = here < n ? x[here] : none;
    strange = strange || (here < n && !(v - v == 0.0f));
    const int place = row * 2 * groups + group;
    if (way[TOLD]) weigh(v, values, peaks + place + groups, sums + place + groups, group < groups);
    if (edits && here < n)
      v = edited(v, way, tally[here], bias[here], mask[here / 32] >> here % 32 & 1);
    if (temperature > 0.0f) v = __fdiv_rn(v, temperature);
    if ((edits || cut) && here < padded) scores[here] = v;
    if (cut) weigh(v, values, peaks + place, sums + place, group < groups);
    strange = strange || (here < n && !(v < __uint_as_float(0x7f800000)));
    if (temperature > 0.0f) {
      unsigned words[4] = {static_cast<unsigned>(here / 4),
                           static_cast<unsigned>(rows[2 * index[row] + 1]),
                           static_cast<unsigned>(way[CHOICE]), 0};
      philox(words, way[LOW], way[HIGH]);
      const unsigned low = here % 2 ? words[1] : words[0], high = here % 2 ? words[3] : words[2];
      v = __fadd_rn(v, gumbel(here % 4 < 2 ? low : high));
    }
    if (here < n && (v > value || (v == value && here < column))) {
      value = v;
      column = here;
    }
  }
  strange = __syncthreads_or(strange);
  values[thread] = value;
  columns[thread] = column;
  __syncthreads();
  for (int half = 128; half; half /= 2) {
    if (thread < half) {
      const float other = values[thread + half];
      const int other_column = columns[thread + half];
      if (other > values[thread] || (other == values[thread] && other_column < columns[thread])) {
        values[thread] = other;
        columns[thread] = other_column;
      }
    }
    __syncthreads();
  }
  if (thread != 0) return;
  best[blockIdx.x] = strange ? __uint_as_float(0x7fc00000) : values[0];
  at[blockIdx.x] = strange ? -1 : columns[0];
}
