// Softmax of each row, a block a row; the block's sums go through dynamic shared memory.
#include <cfloat>

template <typename T>
__device__ T blockReduceMax(T val, T *shared) {
  shared[threadIdx.x] = val;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + s]);
    __syncthreads();
  }
  val = shared[0];
  __syncthreads();
  return val;
}

template <typename T>
__device__ T blockReduceSum(T val, T *shared) {
  shared[threadIdx.x] = val;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) shared[threadIdx.x] += shared[threadIdx.x + s];
    __syncthreads();
  }
  val = shared[0];
  __syncthreads();
  return val;
}

__global__ void softmax_forward(float *out, const float *inp, int N, int C) {
  extern __shared__ float shared[];
  const float *x = inp + (long)blockIdx.x * C;
  float *y = out + (long)blockIdx.x * C;

  float maxval = -FLT_MAX;
  for (int i = threadIdx.x; i < C; i += blockDim.x) maxval = fmaxf(maxval, x[i]);
  maxval = blockReduceMax<float>(maxval, shared);

  float sum = 0.0f;
  for (int i = threadIdx.x; i < C; i += blockDim.x) {
    y[i] = expf(x[i] - maxval);
    sum += y[i];
  }
  sum = blockReduceSum<float>(sum, shared);
  for (int i = threadIdx.x; i < C; i += blockDim.x) y[i] = y[i] / sum;
}

void softmax(float *out, const float *inp, int N, int C) {
  const int block_size = 128;
  softmax_forward<<<N, block_size, block_size * sizeof(float)>>>(out, inp, N, C);
}
