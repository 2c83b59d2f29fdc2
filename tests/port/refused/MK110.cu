//
__global__ void first(float* x) { x[threadIdx.x] += 1; }
