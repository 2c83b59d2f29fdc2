// --block 256
__global__ void halves(float* x) {
  __shared__ float s[256];
  s[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 128) {
    __syncthreads();
    x[threadIdx.x] = s[127 - threadIdx.x];
  }
}
