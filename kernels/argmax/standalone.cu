// The largest value's index on a GPU, a block of 256 threads a row. An ordinary kernel.
//   x [rows, n] float32; y [rows] int32: the lowest index of the largest value, -1 where a value is
//   not finite

extern "C" __global__ void __launch_bounds__(256) argmax(const float* x, int* y, int n) {
  extern __shared__ __align__(16) char shared[];
  float* values = reinterpret_cast<float*>(shared);  // [256]
  int* indices = reinterpret_cast<int*>(values + 256);
  const int thread = threadIdx.x;
  const float* row = x + static_cast<long long>(blockIdx.x) * n;
  float best = row[0];
  int index = 0;
  bool strange = false;
  for (int i = thread; i < n; i += 256) {
    strange = strange || !(row[i] - row[i] == 0.0f);
    if (row[i] > best) best = row[i], index = i;
  }
  values[thread] = best;
  indices[thread] = index;
  strange = __syncthreads_or(strange);
  for (int half = 128; half; half /= 2) {
    if (thread < half) {
      const float other = values[thread + half];
      const int other_index = indices[thread + half];
      if (other > values[thread] || (other == values[thread] && other_index < indices[thread])) {
        values[thread] = other;
        indices[thread] = other_index;
      }
    }
    __syncthreads();
  }
  if (thread == 0) y[blockIdx.x] = strange ? -1 : indices[0];
}
