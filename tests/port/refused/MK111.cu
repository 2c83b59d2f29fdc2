// --block 512
__global__ void turn(float* x) {
  __shared__ float s[512];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[511 - threadIdx.x];
}
