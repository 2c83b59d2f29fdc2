// --block 256
__global__ void roles(float* x) {
  asm volatile("bar.sync 1, 128;" ::: "memory");
  x[threadIdx.x] += 1;
}
