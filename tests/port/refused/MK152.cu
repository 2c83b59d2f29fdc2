// --block 32
__global__ void compact(const float* x, float* y, int* count) {
  if (x[threadIdx.x] > 0) {
    int place = atomicAdd(count, 1);
    y[place] = x[threadIdx.x];
  }
}
