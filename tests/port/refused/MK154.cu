// --block 32
__global__ void child(float* x) { x[threadIdx.x] += 1; }
__global__ void parent(float* x) { child<<<1, 32>>>(x); }
