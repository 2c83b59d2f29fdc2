// --block 256
__global__ void large(float* x) {
  __shared__ float s[60000];
  s[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = s[threadIdx.x];
}
