// --block 64
__global__ void when(long long* x) { x[threadIdx.x] = clock64(); }
