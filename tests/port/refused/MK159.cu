// --block 32
__global__ void who(int* x) {
  int sm;
  asm("mov.u32 %0, %%smid;" : "=r"(sm));
  x[blockIdx.x] = sm;
}
