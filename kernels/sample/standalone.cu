// The next token's best candidate of each 4096 columns on a GPU, a block of 256 threads each. An
// ordinary kernel.
//   x [rows, n] float32 logits; sampling [rows, 4]: a float32 temperature's bits (0: no noise), a
//   seed's low and high word, the number of the choice; index [rows]: a row's token, whose position
//   is rows[token][1]
//   best [rows, blocks] float32: the largest x / temperature + noise, NaN where an x is not finite;
//   at [rows, blocks]: its lowest column, -1 where an x is not finite
// The noise is Gumbel's, of Philox4x32-10 words that depend on (seed, choice, position, column).

enum { COLUMNS = 4096 };

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

extern "C" __global__ void __launch_bounds__(256) sample(const float* x, const int* sampling,
                                                         const int* index, const int* rows,
                                                         float* best, int* at, int n) {
  extern __shared__ __align__(16) char shared[];
  float* values = reinterpret_cast<float*>(shared);  // [256]
  int* columns = reinterpret_cast<int*>(values + 256);
  const int parts = (n + COLUMNS - 1) / COLUMNS, thread = threadIdx.x;
  const int row = blockIdx.x / parts, first = blockIdx.x % parts * COLUMNS;
  const int end = first + COLUMNS < n ? first + COLUMNS : n;
  const float temperature = __uint_as_float(sampling[row * 4]);
  x += static_cast<long long>(row) * n;
  float value = -__uint_as_float(0x7f800000);
  int column = 0x7fffffff;
  bool strange = false;
  for (int four = first + thread * 4; four < end; four += 256 * 4) {
    unsigned words[4] = {static_cast<unsigned>(four / 4), 0, 0, 0};
    if (temperature > 0.0f) {
      words[1] = rows[2 * index[row] + 1];
      words[2] = sampling[row * 4 + 3];
      philox(words, sampling[row * 4 + 1], sampling[row * 4 + 2]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (four + i >= end) break;
      float score = x[four + i];
      strange = strange || !(score - score == 0.0f);
      if (temperature > 0.0f)
        score = __fadd_rn(__fdiv_rn(score, temperature), gumbel(words[i]));
      if (score > value || (score == value && four + i < column)) {
        value = score;
        column = four + i;
      }
    }
  }
  values[thread] = value;
  columns[thread] = column;
  strange = __syncthreads_or(strange);
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
