// --grid 1 --block 64 --arg x=f32[64]
__global__ void shift(float* x) {
  __shared__ float s[65];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x + 1];
}
