// --block 128
__global__ void bulk(float* x) {
  __shared__ unsigned long long ready;
  unsigned at = __cvta_generic_to_shared(&ready);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at));
  x[threadIdx.x] += 1;
}
