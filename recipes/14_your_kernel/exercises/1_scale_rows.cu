// y[row, i] = x[row, i] * factors[row], one block a row. Any number of threads may be in a block,
// fewer than n too, so a thread takes every blockDim.x-th column.

extern "C" __global__ void scale_rows(const float* x, const float* factors, float* y, int n) {
  // blank: the row's beginning, then a loop over this thread's columns
  const long long row = static_cast<long long>(blockIdx.x) * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[row + i] = x[row + i] * factors[blockIdx.x];
  // end
}
