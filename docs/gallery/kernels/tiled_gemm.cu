// A matrix product through tiles in shared memory.
#include <stdio.h>

#define TILE_WIDTH 16

__global__ void tiledMatMul(const float *__restrict__ A, const float *__restrict__ B,
                            float *__restrict__ C, int m, int n, int k) {
  __shared__ float Mds[TILE_WIDTH][TILE_WIDTH];
  __shared__ float Nds[TILE_WIDTH][TILE_WIDTH + 1];

  int bx = blockIdx.x, by = blockIdx.y;
  int tx = threadIdx.x, ty = threadIdx.y;
  int row = by * TILE_WIDTH + ty;
  int col = bx * TILE_WIDTH + tx;

  float value = 0;
  for (int ph = 0; ph < (k + TILE_WIDTH - 1) / TILE_WIDTH; ++ph) {
    Mds[ty][tx] = (row < m && ph * TILE_WIDTH + tx < k) ? A[row * k + ph * TILE_WIDTH + tx] : 0.f;
    Nds[ty][tx] = (col < n && ph * TILE_WIDTH + ty < k) ? B[(ph * TILE_WIDTH + ty) * n + col] : 0.f;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE_WIDTH; ++i) value += Mds[ty][i] * Nds[i][tx];
    __syncthreads();
  }
  if (row < m && col < n) C[row * n + col] = value;
}

int main() {
  int m = 40, n = 48, k = 50;
  float *a, *b, *c;
  cudaMalloc(&a, m * k * sizeof(float));
  cudaMalloc(&b, k * n * sizeof(float));
  cudaMalloc(&c, m * n * sizeof(float));
  dim3 block(TILE_WIDTH, TILE_WIDTH);
  dim3 grid((n + TILE_WIDTH - 1) / TILE_WIDTH, (m + TILE_WIDTH - 1) / TILE_WIDTH);
  tiledMatMul<<<grid, block>>>(a, b, c, m, n, k);
  printf("done\n");
  return 0;
}
