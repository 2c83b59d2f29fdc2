// --grid 1 --block 32
__global__ void lacks(float* x) { x[threadIdx.x] = of_another_file(x[threadIdx.x]); }
