// --grid 1 --block 32 --arg x=i32[32]=1..9
__global__ void halve(int* x) {
  while (x[threadIdx.x] != 0) x[threadIdx.x] ^= 1024;
}
