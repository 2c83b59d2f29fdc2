// A matrix product whose sum over k is split between blocks, and joined by a second kernel: no
// atomics, so that the result is the same every time.
#include <cuda_runtime.h>

__global__ void splitk_partial(const float *A, const float *B, float *partial, int M, int N, int K,
                               int splits) {
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y;
  const int split = blockIdx.z;
  if (col >= N) return;
  const int len = (K + splits - 1) / splits;
  const int begin = split * len;
  const int end = min(begin + len, K);
  float acc = 0.f;
  for (int k = begin; k < end; ++k) acc += A[row * K + k] * B[k * N + col];
  partial[((size_t)split * M + row) * N + col] = acc;
}

__global__ void splitk_reduce(const float *partial, const float *bias, float *C, int M, int N,
                              int splits) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= M * N) return;
  float acc = bias[i % N];
  for (int s = 0; s < splits; ++s) acc += partial[(size_t)s * M * N + i];
  C[i] = acc;
}

void splitk_gemm(const float *A, const float *B, const float *bias, float *partial, float *C, int M,
                 int N, int K, int splits, cudaStream_t stream) {
  dim3 grid((N + 63) / 64, M, splits);
  splitk_partial<<<grid, 64, 0, stream>>>(A, B, partial, M, N, K, splits);
  splitk_reduce<<<(M * N + 63) / 64, 64, 0, stream>>>(partial, bias, C, M, N, splits);
}
