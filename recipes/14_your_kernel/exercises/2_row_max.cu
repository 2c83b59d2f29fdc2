// y[row] = the largest x[row, i], one block of 64 threads a row. Each thread looks at its own
// columns first and puts what it found into shared memory; then the block joins the 64 numbers in
// halves: 32 threads take the larger of two, then 16, then 8, down to one.

extern "C" __global__ void row_max(const float* x, float* y, int n) {
  __shared__ float part[64];
  const float* row = x + static_cast<long long>(blockIdx.x) * n;
  float most = -3.4e38f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
  part[threadIdx.x] = most;
  // blank: join in halves; every thread must meet every barrier, before each half is read
  for (int half = 32; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + half]);
  }
  __syncthreads();
  // end
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
