// --block 40
__global__ void turn(float* x) {
  __shared__ float s[40];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[39 - threadIdx.x];
}
