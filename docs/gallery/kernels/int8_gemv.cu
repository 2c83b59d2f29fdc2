// y = (W x) * scales in int8, four products an instruction; 128 threads a row.
extern "C" __global__ void __launch_bounds__(128)
    gemv_int8(const signed char *__restrict__ weight, const signed char *__restrict__ x,
              const float *__restrict__ scales, float x_scale, float *__restrict__ y, int cols) {
  __shared__ int partial[4];
  const int *w = reinterpret_cast<const int *>(weight + (size_t)blockIdx.x * cols);
  const int *v = reinterpret_cast<const int *>(x);
  int acc = 0;
  for (int i = threadIdx.x; i < cols / 4; i += 128) acc = __dp4a(w[i], v[i], acc);
  for (int offset = 16; offset; offset >>= 1) acc += __shfl_down_sync(~0u, acc, offset);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = acc;
  __syncthreads();
  if (threadIdx.x == 0)
    y[blockIdx.x] = (partial[0] + partial[1] + partial[2] + partial[3]) * x_scale * scales[blockIdx.x];
}
