// --block 64
__global__ void turn(const int* lengths, float* x) {
  __shared__ float s[64];
  if (lengths[blockIdx.x] == 0) return;
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[63 - threadIdx.x];
}
