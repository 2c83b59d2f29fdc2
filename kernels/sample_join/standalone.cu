// The best of a row's blocks on a GPU, and of rows that are cut the best of those that the cuts leave,
// a block of 256 threads a row. An ordinary kernel: it looks at all columns as often as it needs to.
//   x [rows, n] float32 logits; sampling, index, rows, scores, best, at, peaks, sums: as `sample` has
//   and leaves them; at is -1 where a block has no best
//   tally [sequences, padded] counts the token, if its row has a penalty
//   y [rows] int32: the token; -1 where an at is, -2 where no column may be chosen
//   ids [rows, 20] of rows that are told: the columns of the largest x; logprobs [rows, 21] likewise:
//   the log probability of y, then theirs

typedef unsigned long long Place;  // larger for the larger value, then for the lower column
enum { COLUMNS = 4096, GROUP = 128, RIVALS = 20 };
enum { TEMPERATURE, LOW, HIGH, CHOICE, FLAGS, TOP_K, TOP_P, MIN_P, TOLD = 11, GIVEN, WORDS = 16 };
enum { COUNTED = 3, CUTS = 32 };

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

__device__ Place place_of(float value, int column) {
  const unsigned bits = __float_as_uint(__fadd_rn(value, 0.0f));
  const unsigned order = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<Place>(order) << 32 | (0xffffffffu - static_cast<unsigned>(column));
}
__device__ int column_of(Place place) {
  return static_cast<int>(0xffffffffu - static_cast<unsigned>(place));
}

struct Found {
  int count;
  long long weight;  // e^(value - largest) in whole 2^-40, so that the order of a sum is no matter
  Place largest;
};

// What the block found, for all of its threads.
__device__ Found joined(Found f, char* shared) {
  long long* weights = reinterpret_cast<long long*>(shared);  // [256]
  Place* places = reinterpret_cast<Place*>(weights + 256);
  int* counts = reinterpret_cast<int*>(places + 256);
  const int thread = threadIdx.x;
  __syncthreads();
  weights[thread] = f.weight;
  places[thread] = f.largest;
  counts[thread] = f.count;
  for (int half = 128; half; half /= 2) {
    __syncthreads();
    if (thread < half) {
      weights[thread] += weights[thread + half];
      counts[thread] += counts[thread + half];
      if (places[thread + half] > places[thread]) places[thread] = places[thread + half];
    }
  }
  __syncthreads();
  return {counts[0], weights[0], places[0]};
}

__device__ long long weight_of(float value, float top) {
  return static_cast<long long>(__fmul_rn(exp_of(__fadd_rn(value, -top)), 1099511627776.0f));
}

// The values whose places are from `low` up to below `high`: how many, their weight, the largest.
__device__ Found look(const float* values, int n, Place low, Place high, float top, char* shared) {
  Found f = {0, 0, 0};
  for (int column = threadIdx.x; column < n; column += 256) {
    const Place place = place_of(values[column], column);
    if (place < low || place >= high) continue;
    f.count++;
    f.weight += weight_of(values[column], top);
    if (place > f.largest) f.largest = place;
  }
  return joined(f, shared);
}

// The column of the largest value + noise of those whose places are from `low` on.
__device__ int race(const float* values, int n, Place low, const int* way, int position,
                    char* shared) {
  Found f = {0, 0, 0};
  for (int column = threadIdx.x; column < n; column += 256) {
    if (place_of(values[column], column) < low) continue;
    unsigned words[4] = {static_cast<unsigned>(column / 4), static_cast<unsigned>(position),
                         static_cast<unsigned>(way[CHOICE]), 0};
    philox(words, way[LOW], way[HIGH]);
    const unsigned even = column % 4 < 2 ? words[0] : words[2];
    const unsigned odd = column % 4 < 2 ? words[1] : words[3];
    const float score = __fadd_rn(values[column], gumbel(column % 2 ? odd : even));
    const Place place = place_of(score, column);
    if (place > f.largest) f.largest = place;
  }
  return column_of(joined(f, shared).largest);
}

// The weight of a row, of each group's largest value and sum of e^(value - largest).
__device__ long long total(const float* peaks, const float* sums, int groups, float top,
                           char* shared) {
  Found f = {0, 0, 0};
  for (int group = threadIdx.x; group < groups; group += 256) {
    const float part = __fmul_rn(sums[group], exp_of(__fadd_rn(peaks[group], -top)));
    f.weight += static_cast<long long>(__fmul_rn(part, 1099511627776.0f));
  }
  return joined(f, shared).weight;
}

// The column that min_p, then top_k, then top_p leave, and whose value + noise is the largest.
__device__ int left(const float* scores, int n, const float* peaks, const float* sums, int groups,
                    const int* way, int position, char* shared) {
  const Place lowest = 0x80000000000000ull, end = ~0ull;  // of a value above -infinity; of all
  const int k = way[TOP_K];
  const unsigned share = way[TOP_P];
  const float top = scores[column_of(look(scores, n, lowest, end, 0.0f, shared).largest)];
  Place low = lowest;
  if (way[FLAGS] & CUTS) {
    const Place place = place_of(__fadd_rn(top, __uint_as_float(way[MIN_P])), -1);
    if (place > low) low = place;
  }
  if (k > 0 && look(scores, n, low, end, top, shared).count > k) {
    Place kth = 0;  // the highest place that k values reach, bit by bit
    for (int bit = 63; bit >= 0; bit--) {
      const Place higher = kth | 1ull << bit;
      if (look(scores, n, higher, end, top, shared).count >= k) kth = higher;
    }
    low = kth;
  }
  if (share) {
    const bool everything = k == 0 && !(way[FLAGS] & CUTS);
    const Place whole = everything ? total(peaks, sums, groups, top, shared)
                                   : look(scores, n, low, end, top, shared).weight;
    Place needed = (whole >> 32) * share + ((whole & 0xffffffffu) * share >> 32);
    if (needed == 0) needed = 1;
    Place last = 0;  // the highest place from which on values weigh so much, bit by bit
    for (int bit = 63; bit >= 0; bit--) {
      const Place higher = last | 1ull << bit;
      if (static_cast<Place>(look(scores, n, higher, end, top, shared).weight) >= needed)
        last = higher;
    }
    if (last > low) low = last;
  }
  return race(scores, n, low, way, position, shared);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    sample_join(const float* x, const int* sampling, const int* index, const int* rows,
                const float* scores, const float* best, const int* at, const float* peaks,
                const float* sums, int* tally, int* y, int* ids, float* logprobs, int n) {
  extern __shared__ __align__(16) char shared[];
  const int row = blockIdx.x, thread = threadIdx.x, *way = sampling + row * WORDS;
  const int parts = (n + COLUMNS - 1) / COLUMNS, groups = (n + GROUP - 1) / GROUP;
  const long long padded = static_cast<long long>(groups) * GROUP;
  const int sequence = rows[2 * index[row]], position = rows[2 * index[row] + 1];
  Found f = {0, 0, 0};
  for (int part = thread; part < parts; part += 256) {
    const bool none = at[row * parts + part] < 0;
    f.count += none;
    const Place place = none ? 0 : place_of(best[row * parts + part], at[row * parts + part]);
    if (place > f.largest) f.largest = place;
  }
  const Found all = joined(f, shared);
  const bool cut = way[TOP_K] || way[TOP_P] || way[FLAGS] & CUTS;
  int token = all.count ? -1 : all.largest < 0x80000000000000ull ? -2 : column_of(all.largest);
  peaks += row * 2 * groups;
  sums += row * 2 * groups;
  if (token >= 0 && cut && __uint_as_float(way[TEMPERATURE]) > 0.0f)
    token = left(scores + row * padded, padded, peaks, sums, groups, way, position, shared);
  if (token != -1 && way[GIVEN]) token = way[GIVEN] - 1;
  if (thread == 0) {
    y[row] = token;
    if (token >= 0 && way[FLAGS] & COUNTED) tally[sequence * padded + token]++;
  }
  if (token < 0 || !way[TOLD]) return;
  x += static_cast<long long>(row) * n;
  Found next = look(x, n, 0, ~0ull, 0.0f, shared);
  const float top = x[column_of(next.largest)];
  const long long weight = total(peaks + groups, sums + groups, groups, top, shared);
  const float base = log_of(__fmul_rn(static_cast<float>(weight), 9.094947017729282e-13f));
  if (thread == 0) logprobs[row * (RIVALS + 1)] = __fadd_rn(__fadd_rn(x[token], -top), -base);
  for (int rival = 0; rival < way[TOLD] - 1 && rival < n; rival++) {
    if (rival) next = look(x, n, 0, next.largest, 0.0f, shared);
    const int column = column_of(next.largest);
    if (thread == 0) {
      ids[row * RIVALS + rival] = column;
      logprobs[row * (RIVALS + 1) + rival + 1] = __fadd_rn(__fadd_rn(x[column], -top), -base);
    }
  }
}
