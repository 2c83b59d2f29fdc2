// The op example on a GPU: an ordinary kernel, a block a row.

extern "C" __global__ void example(const float* x, float* y, int n, float factor) {
  const long long row = static_cast<long long>(blockIdx.x) * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[row + i] = factor * x[row + i];
}
