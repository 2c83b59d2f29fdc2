// A gated MLP as somebody has it: three ordinary kernels, launched four times one after another.
// Nothing in here knows of mkport.
//
//   mkport port docs/examples/ported_mlp/mlp.cu --launches -o out \
//     --oracle docs/examples/ported_mlp/oracles.py \
//     --arg x=f32[4,64] --arg norm_w=f32[64] --arg up_w=f32[320,64] --arg down_w=f32[64,160] \
//     --arg normed=f32[4,64] --arg up=f32[4,320] --arg act=f32[4,160] --arg y=f32[4,64] \
//     --arg rows=4 --arg width=64 --arg hidden=160 --arg eps=1e-5
//   mkport compose out/mlp.toml -o out/mlp_kernel.cu --target cuda --check host --trace out/trace
#include <cuda_runtime.h>

#define TILE 16

__device__ __forceinline__ float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

// y = x / sqrt(mean x^2 + eps) * w, a block a row.
__global__ void rms_norm(const float *__restrict__ x, const float *__restrict__ w,
                         float *__restrict__ y, int width, float eps) {
  __shared__ float part[32];
  const float *row = x + blockIdx.x * width;
  float sum = 0.f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) sum += row[i] * row[i];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.f;
  for (int i = 0; i < blockDim.x / 32; i++) sum += part[i];
  const float scale = rsqrtf(sum / width + eps);
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    y[blockIdx.x * width + i] = row[i] * scale * w[i];
}

// y [m, n] = x [m, k] times w [n, k] turned, a block a tile of 16 x 16.
__global__ void gemm(const float *__restrict__ x, const float *__restrict__ w,
                     float *__restrict__ y, int m, int n, int k) {
  __shared__ float xs[TILE][TILE], ws[TILE][TILE + 1];
  const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.f;
  for (int at = 0; at < k; at += TILE) {
    const int here = at + threadIdx.x, other = blockIdx.x * TILE + threadIdx.y;
    xs[threadIdx.y][threadIdx.x] = row < m && here < k ? x[row * k + here] : 0.f;
    ws[threadIdx.y][threadIdx.x] = other < n && here < k ? w[other * k + here] : 0.f;
    __syncthreads();
    for (int i = 0; i < TILE; i++) sum += xs[threadIdx.y][i] * ws[threadIdx.x][i];
    __syncthreads();
  }
  if (row < m && column < n) y[row * n + column] = sum;
}

// y = silu(the first half of x's columns) times the last half.
__global__ void silu_mul(const float *__restrict__ x, float *__restrict__ y, int rows, int hidden) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * hidden) return;
  const int row = i / hidden, column = i % hidden;
  const float gate = x[row * 2 * hidden + column], value = x[row * 2 * hidden + hidden + column];
  y[i] = gate / (1.f + expf(-gate)) * value;
}

void mlp(const float *x, const float *norm_w, const float *up_w, const float *down_w, float *normed,
         float *up, float *act, float *y, int rows, int width, int hidden, float eps,
         cudaStream_t stream) {
  const int both = 2 * hidden;
  const dim3 block(TILE, TILE);
  const dim3 wide((both + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
  const dim3 narrow((width + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
  rms_norm<<<rows, 64, 0, stream>>>(x, norm_w, normed, width, eps);
  gemm<<<wide, block, 0, stream>>>(normed, up_w, up, rows, both, width);
  silu_mul<<<(rows * hidden + 127) / 128, 128, 0, stream>>>(up, act, rows, hidden);
  gemm<<<narrow, block, 0, stream>>>(act, down_w, y, rows, width, hidden);
}
