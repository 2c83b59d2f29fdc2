// The best of a row's parts on a GPU, a warp a row. An ordinary kernel.
//   best [rows, parts] float32; at [rows, parts] int32, -1 where a part has no best
//   y [rows] int32: the index of the largest value, the lowest among equals; -1 where an index is

extern "C" __global__ void __launch_bounds__(32) sample_join(const float* best, const int* at, int* y,
                                                             int parts) {
  const int row = blockIdx.x, lane = threadIdx.x;
  best += static_cast<long long>(row) * parts;
  at += static_cast<long long>(row) * parts;
  float value = -__uint_as_float(0x7f800000);
  int index = 0x7fffffff;
  for (int part = lane; part < parts; part += 32) {
    const float here = at[part] < 0 ? __uint_as_float(0x7f800000) : best[part];  // so that -1 wins
    if (here > value || (here == value && at[part] < index)) {
      value = here;
      index = at[part];
    }
  }
  for (int mask = 16; mask; mask /= 2) {
    const float other = __shfl_xor_sync(~0u, value, mask);
    const int other_index = __shfl_xor_sync(~0u, index, mask);
    if (other > value || (other == value && other_index < index)) {
      value = other;
      index = other_index;
    }
  }
  if (lane == 0) y[row] = index;
}
