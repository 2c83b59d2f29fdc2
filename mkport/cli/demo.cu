// Odds of a linear classifier, as anybody might write it: scores = w x, then their softmax.
#define THREADS 128

__device__ float sum_of_block(float mine, float* part) {
  part[threadIdx.x] = mine;
  __syncthreads();
  for (int n = THREADS / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
    __syncthreads();
  }
  return part[0];
}

// A block a row of w [classes, columns].
__global__ void linear(const float* w, const float* x, float* scores, int columns) {
  __shared__ float part[THREADS];
  float mine = 0.0f;
  for (int i = threadIdx.x; i < columns; i += THREADS) mine += w[blockIdx.x * columns + i] * x[i];
  float sum = sum_of_block(mine, part);
  if (threadIdx.x == 0) scores[blockIdx.x] = sum;
}

__global__ void softmax(const float* scores, float* odds, int classes) {
  __shared__ float part[THREADS];
  float largest = scores[0], mine = 0.0f;
  for (int i = 1; i < classes; i++) largest = fmaxf(largest, scores[i]);
  for (int i = threadIdx.x; i < classes; i += THREADS) mine += expf(scores[i] - largest);
  float sum = sum_of_block(mine, part);
  for (int i = threadIdx.x; i < classes; i += THREADS) odds[i] = expf(scores[i] - largest) / sum;
}

void classify(const float* w, const float* x, float* scores, float* odds, int classes,
              int columns) {
  linear<<<classes, THREADS>>>(w, x, scores, columns);
  softmax<<<1, THREADS>>>(scores, odds, classes);
}
