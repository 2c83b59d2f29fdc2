// --block 128
__global__ void __cluster_dims__(2, 1, 1) pair(float* x) { x[threadIdx.x] += 1; }
