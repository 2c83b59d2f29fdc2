// The softmax of each row, as anybody might write it: a block a row, sums in shared memory.
#define THREADS 128

__global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int columns) {
  __shared__ float part[THREADS];
  const float* row = x + blockIdx.x * columns;
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < columns; i += THREADS) largest = fmaxf(largest, row[i]);
  part[threadIdx.x] = largest;
  __syncthreads();
  for (int n = THREADS / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + n]);
    __syncthreads();
  }
  largest = part[0];
  __syncthreads();
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += THREADS) sum += expf(row[i] - largest);
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int n = THREADS / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
    __syncthreads();
  }
  for (int i = threadIdx.x; i < columns; i += THREADS)
    y[blockIdx.x * columns + i] = expf(row[i] - largest) / part[0];
}

void launch(const float* x, float* y, int rows, int columns) {
  softmax<<<rows, THREADS>>>(x, y, columns);
}
