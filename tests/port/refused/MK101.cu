// --block 32
__global__ void broken(float* x) {
  x[threadIdx.x] = @;
}
