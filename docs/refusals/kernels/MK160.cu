// --grid 1 --block 256
__global__ void wide(const float* x, float* y, int n) {
  float a[200];
#pragma unroll
  for (int i = 0; i < 200; i++) a[i] = x[i * 256 + threadIdx.x];
  for (int s = 0; s < n; s++) {
#pragma unroll
    for (int i = 0; i < 200; i++) a[i] = a[i] * a[(i + 7) % 200] + x[s];
  }
#pragma unroll
  for (int i = 0; i < 200; i++) y[i * 256 + threadIdx.x] = a[i];
}
