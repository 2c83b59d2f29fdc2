// --grid 1 --block 32 --arg x=i32[32]
__global__ void votes(int* x) {
  if (threadIdx.x & 1)
    x[threadIdx.x] = __ballot_sync(0xffffffff, 1);
  else
    __syncwarp();
}
