// --grid 1 --block 64 --arg bits=i32[64]
__global__ void one_bit(int* bits) { bits[threadIdx.x] = 1 << threadIdx.x; }
